"""Policies of kinds, and pauses of queues: settings that apply to later tasks and claims."""

from __future__ import annotations

from collections.abc import Mapping

from onetray.domain.checks import optional_text, text
from onetray.domain.errors import InvalidInput
from onetray.domain.lifecycle import QUEUE_PAUSED, QUEUE_RESUMED
from onetray.domain.machine import USER
from onetray.domain.policy import Policy
from onetray.domain.token import READ, WORK
from onetray.engine.limit_rules import declare_policy
from onetray.engine.pending_writes import actor, record_change
from onetray.engine.reads import DatabaseReads, act, own_route, read
from onetray.redaction.answers import plain
from onetray.store.base import Tx


class KindApi(DatabaseReads):
    """`engine.configure`, `engine.pause_queue` and others, on a database."""

    @own_route
    def configure(self, kind: str, policy: Policy, *, namespace: str = "default") -> None:
        """Set the policy of a kind. Tasks that were submitted before keep theirs."""
        ns = self._intern_checked(kind, policy, namespace)
        declare_policy(self.store, ns, kind, policy, self.config.names_ttl_s)
        self.store.names.configure(ns, kind, policy)

    def _intern_checked(self, kind: str, policy: Policy, namespace: str) -> int:
        limit = self.config.limits.name_chars
        text(kind, "kind", limit)
        text(namespace, "namespace", limit)
        if not isinstance(policy, Policy):
            raise InvalidInput("policy must be a Policy", field="policy")
        return self.store.names.intern_namespace(namespace)

    @own_route
    def declare(self, policies: Mapping[str, Policy], *, namespace: str = "default") -> None:
        """Set the policies of many kinds. Writes only those that differ."""
        self.store.names.refresh()
        for kind, policy in policies.items():
            if self.policy_of(kind, namespace=namespace) != policy:
                self.configure(kind, policy, namespace=namespace)

    def declare_keeping_redaction(
        self, policies: Mapping[str, Policy], *, namespace: str = "default"
    ) -> dict[str, list[str]]:
        """Set the policies of many kinds. Paths that a kind already redacts stay redacted.

        Returns, by kind, the kept paths that the new policy does not name."""
        self.store.names.refresh()
        return {kind: self._configure_keeping_redaction(kind, p, namespace) for kind, p in policies.items()}

    def _configure_keeping_redaction(self, kind: str, policy: Policy, namespace: str) -> list[str]:
        names, ns = self.store.names, self._intern_checked(kind, policy, namespace)
        declare_policy(self.store, ns, kind, policy, self.config.names_ttl_s)
        key = names.intern_kind(ns, kind)
        while True:
            old = names.policy_of_kind(key, self.config.names_ttl_s)
            kept = [path for path in names.policy(old).redact if path not in policy.redact]
            # If another process has changed the policy meanwhile, its paths are kept, too.
            if names.replace_policy(key, old, policy.with_(redact=(*policy.redact, *kept)) if kept else policy):
                return kept

    @read(plain, READ, WORK)
    def policy_of(self, kind: str, *, namespace: str = "default") -> Policy | None:
        """The policy of the next tasks of a kind; None if the kind is unknown."""
        names = self.store.names
        ns = names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        key = None if ns is None else names.kind(ns, text(kind, "kind", self.config.limits.name_chars))
        return None if key is None else names.policy(names.policy_of_kind(key, self.config.names_ttl_s))

    @act
    def pause_queue(
        self, queue: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> None:
        """Stop claims from a queue. Tasks that are already claimed go on. The event `queue.paused` records it."""
        self._set_paused(queue, namespace, by, reason, pause=True)

    @act
    def resume_queue(
        self, queue: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> None:
        """Allow claims from a queue again. The event `queue.resumed` records it."""
        self._set_paused(queue, namespace, by, reason, pause=False)

    def _set_paused(self, queue: str, namespace: str, by: str, reason: str | None, pause: bool) -> None:
        names = self.store.names
        text(by, "by", self.config.limits.name_chars)
        optional_text(reason, "reason", self.config.limits.reason_chars)
        ns = names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))
        key = names.intern_queue(ns, text(queue, "queue", self.config.limits.name_chars))

        def change(tx: Tx) -> None:
            type_ = QUEUE_PAUSED if pause else QUEUE_RESUMED
            if tx.query("pause_queue", key=key, at=tx.now, by=by) if pause else tx.query("resume_queue", key=key):
                record_change(tx, ns, type_, actor(USER, by), reason, about=("queue", queue))

        self.store.write(change)
