"""Other libraries' environments as ours and ours as theirs, one module a library: each imports its library when it is used."""
