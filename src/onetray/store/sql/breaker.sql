-- Breakers of kinds.

-- word: past_breakers
(:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL))

-- name: kinds_past_breakers
-- The kinds with ready tasks in the queue, and until when their breakers are open. Empty if no breaker is open.
SELECT k.key, br.open_until FROM onetray.kind AS k LEFT JOIN onetray.breaker AS br ON br.kind = k.key
WHERE EXISTS (SELECT 1 FROM onetray.breaker AS o WHERE o.open_until IS NOT NULL) AND k.ns = :ns
    AND EXISTS (SELECT 1 FROM onetray.ready AS r WHERE r.queue = :queue AND r.kind = k.key)

-- name: breakers_of_kinds
SELECT kind, open_until FROM onetray.breaker WHERE open_until IS NOT NULL AND kind {in:kinds:integer}

-- name: lock_breakers_to_try
SELECT kind FROM onetray.breaker WHERE kind {in:kinds:integer} AND open_until <= :now ORDER BY kind {skip_locked_due}

-- name: try_breaker
UPDATE onetray.breaker SET probing = 1, open_until = b.open_until {from_batch} WHERE breaker.kind = b.kind

-- name: add_breaker
INSERT INTO onetray.breaker (kind, recent) SELECT b.kind, '[]' {from_batch} WHERE true ON CONFLICT DO NOTHING

-- name: lock_breakers
-- row: BreakerRow
SELECT kind, recent, opened_at, open_until, probing, why, opened_by FROM onetray.breaker
WHERE kind {in:kinds:integer} AND (probing = 1 OR kind {in:failed:integer}) ORDER BY kind {for_update}

-- name: set_breaker
UPDATE onetray.breaker SET recent = b.recent, opened_at = b.opened_at, open_until = b.open_until, probing = b.probing,
    why = b.why, opened_by = b.opened_by {from_batch} WHERE breaker.kind = b.kind

-- name: lock_open_breakers
SELECT kind FROM onetray.breaker WHERE kind {in:kinds:integer} AND open_until IS NOT NULL ORDER BY kind {for_update}

-- name: breaker_opened
-- Whether this call has opened the breaker before, and its answer was lost.
SELECT kind FROM onetray.breaker WHERE kind = :kind AND opened_at >= :since AND opened_by = :by AND why = :why

-- name: close_breakers
UPDATE onetray.breaker SET recent = '[]', opened_at = NULL, open_until = NULL, probing = 0, why = NULL, opened_by = NULL
WHERE kind {in:kinds:integer}

-- name: open_breaker
INSERT INTO onetray.breaker (kind, recent, opened_at, open_until, probing, why, opened_by)
VALUES (:kind, '[]', :at, :until, 0, :why, :by)
ON CONFLICT (kind) DO UPDATE SET opened_at = excluded.opened_at, open_until = excluded.open_until, probing = 0,
    why = excluded.why, opened_by = excluded.opened_by

-- name: breakers
-- row: BreakerDetails
SELECT k.name AS kind, br.recent, br.opened_at, br.open_until, br.probing, br.why, br.opened_by, p.body AS policy,
    {clock} AS seen_at
FROM onetray.breaker AS br JOIN onetray.kind AS k ON k.key = br.kind JOIN onetray.namespace AS n ON n.key = k.ns
    JOIN onetray.policy AS p ON p.key = k.policy
WHERE n.name = :namespace ORDER BY k.name LIMIT :limit
