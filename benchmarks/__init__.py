"""How fast onetray is, measured against what the same work costs by hand. Run with `./go bench`."""
