"""The pages of the dashboard: a module for each, imported by itself."""
