"""so1: jobs at /api/jobs, with so1's states and errors. See docs/so1.md.

routes.py has the routes and errors, job.py maps values. The engine decides what is allowed.
"""

from onetray.dialects.so1.routes import DIALECT

__all__ = ["DIALECT"]
