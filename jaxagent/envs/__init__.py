"""Worlds. Import their modules: this package loads none of them, because `jaxagent.render` needs `symbols` alone."""
