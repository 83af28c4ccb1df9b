"""pipeline: declared flows as jobs at /v1/pipeline/jobs, with the statuses and events of an async pipeline.

routes.py has the routes and errors, job.py maps values, stream.py maps events. See docs/pipeline.md.
"""

from onetray.dialects.pipeline.routes import DIALECT

__all__ = ["DIALECT"]
