"""The stream of a job: stage_start, stage_progress, stage_complete, error and job_complete."""

from __future__ import annotations

from typing import Any

from onetray.dialects import kit
from onetray.dialects.pipeline.job import error_list, find_flow, percentage_of_stage, stage_view, status_of, time
from onetray.domain.flow import Stage, message_of_error
from onetray.domain.lifecycle import FAILED, FLOW, PARTIAL, STAGE
from onetray.domain.task import Event
from onetray.engine.api import EngineApi


class PipelineView(kit.JobView):
    """A flow as the stream shows it."""

    def __init__(self, engine: EngineApi, id_: str, namespace: str) -> None:
        super().__init__(engine, find_flow(engine, id_, namespace), namespace)

    def parts(self, item: Event | kit.Line) -> list[kit.Part]:
        if not isinstance(item, Event):
            return self._report(item)
        stage = self._stages.get(item.entity_id)
        if self.is_end(item):
            return self._job_end(item)
        if stage is None or item.version is None:
            return []
        if item.type == STAGE.start.event:
            return [("stage_start", {"job_id": self.id, "stage": stage.name, "started_at": time(item.ts)})]
        return self._stage_end(stage, item) if item.state in STAGE.terminal else []

    def progress(self) -> tuple[int, kit.Part | None]:
        """The progress of the running stage, whenever one of its tasks has ended."""
        progress = self._read_flow()
        for stage in progress.stages:
            if stage.name == progress.current_stage and stage.started_at is not None and stage.finished_at is None:
                return progress.counts.done, self._progress(stage, done=stage.counts.done, total=stage.counts.total)
        return progress.counts.done, None

    def _report(self, line: Any) -> list[kit.Part]:
        """Progress that a task has reported. Its log lines are not part of this stream."""
        stages = [stage for stage in self._stages.values() if stage.name == line.stage and line.done is not None]
        facts = {"done": line.done, "total": line.total, "task": line.name or line.task, "message": line.message}
        return [self._progress(stage, **facts) for stage in stages]

    def _progress(self, stage: Stage, task: str | None = None, message: str | None = None, **numbers: Any) -> kit.Part:
        facts = {"job_id": self.id, "stage": stage.name, "percentage": percentage_of_stage(stage)}
        return "stage_progress", {**facts, **numbers, "task": task, "message": message}

    def _stage_end(self, stage: Stage, event: Event) -> list[kit.Part]:
        view = {"job_id": self.id, "stage": stage.name, **stage_view(stage), "reason": event.cause}
        failed = event.state in (FAILED, PARTIAL)
        error = self._error(stage.name, stage.error, view["errors"]) if failed else []
        return [*error, ("stage_complete", view)]

    def _job_end(self, event: Event) -> list[kit.Part]:
        flow = self._engine.flow(self.id, namespace=self._namespace)
        errors = error_list(self._engine.flow_errors(self.id, namespace=self._namespace))
        timed_out = event.type == FLOW.time_out.event
        error = self._error(None, flow.error, errors["errors"]) if timed_out else []
        end = {"job_id": self.id, "status": status_of(flow), "finished_at": time(flow.finished_at), **errors}
        return [*error, ("job_complete", end)]

    def _error(self, stage: str | None, error: Any, errors: list[Any]) -> list[kit.Part]:
        message = message_of_error(error)
        return [("error", {"job_id": self.id, "stage": stage, "message": message, "errors": errors})]
