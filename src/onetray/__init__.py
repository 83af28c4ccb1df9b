"""onetray: a durable job engine with an explicit, enforced state machine."""

__version__ = "0.1.0"
