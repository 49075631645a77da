"""Sweeps: hundreds of configurations and seeds, trained side by side in one program.

A spec (`spec`) names trials; a scheduler (`scheduling`) says which lanes, a trial with a seed each, go on next and in which
company; a chunk of lanes (`chunks`) is trained by a compiled program (`jaxagent.lanes`) on any worker (`executors`), and adds
rows to the ledger (`ledger`), from which alone everything goes on (`driver`).
"""
