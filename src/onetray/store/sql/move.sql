-- One UPDATE for each transition, with the columns that change besides the state. Those of tasks have no prefix.
-- move_sql.py adds the guard (key, version, state, fence) and the new state from the lifecycle's table, and the ids of the
-- events. b is the batch, one row for each entity; b.at is the time of the move, never before that of its last move.

-- move: claim
UPDATE onetray.task SET {moved}, attempts = task.attempts + 1, owner = b.worker, lease = b.lease

-- move: claim, start
UPDATE onetray.task SET {moved}, attempts = task.attempts + 1, owner = b.worker, lease = b.lease, started_at = b.at

-- move: start
UPDATE onetray.task SET {moved}, started_at = b.at

-- move: succeed
UPDATE onetray.task SET {moved}, {ended}, result = b.result, error = NULL

-- move: start, succeed
UPDATE onetray.task SET {moved}, {ended}, result = b.result, error = NULL,
    started_at = b.began

-- move: fail
UPDATE onetray.task SET {moved}, {ended}, error = b.error

-- move: retry
UPDATE onetray.task SET {moved}, {reopened}, error = b.error, spared = 0

-- move: release
UPDATE onetray.task SET {moved}, {reopened}, attempts = task.attempts - 1, spared = 0

-- move: expire
UPDATE onetray.task SET {moved}, {reopened}, attempts = task.attempts - b.given_back, spared = b.spared

-- move: block
UPDATE onetray.task SET {moved}, {freed}, attempts = task.attempts - 1, held_by = b.held_by, held_why = b.held_why

-- move: wait_for_input
UPDATE onetray.task SET {moved}, {freed}, attempts = task.attempts - 1, held_by = b.held_by, held_why = b.held_why

-- move: resume
UPDATE onetray.task SET {moved}, {reopened}, held_by = NULL, held_why = NULL, spared = 0,
    input = coalesce(b.input, task.input)

-- move: cancel
UPDATE onetray.task SET {moved}, {ended}, held_by = NULL, held_why = NULL

-- move: time_out
UPDATE onetray.task SET {moved}, {ended}, held_by = NULL, held_why = NULL, error = b.error

-- move: dead_letter
UPDATE onetray.task SET {moved}, {ended}, error = b.error

-- move: carry_over
-- The result is copied here: it may be large.
UPDATE onetray.task SET {moved}, {ended}, attempts = b.attempts,
    result = (SELECT o.result FROM onetray.task AS o WHERE o.key = b.carried_from)

-- move: carry_over_failed
UPDATE onetray.task SET {moved}, {ended}, attempts = b.attempts, error = b.error

-- move: carry_over_dead
UPDATE onetray.task SET {moved}, {ended}, attempts = b.attempts, error = b.error

-- move: stage.open
UPDATE onetray.stage SET {moved}

-- move: stage.wait
UPDATE onetray.stage SET {moved}, approval = b.approval

-- move: stage.approve
UPDATE onetray.stage SET {moved}, answer = b.answer

-- move: stage.start
-- A stage that had started before its approval keeps its start.
UPDATE onetray.stage SET {moved}, started_at = coalesce(stage.started_at, b.at)

-- move: stage.succeed
UPDATE onetray.stage SET {moved}, {ended}, result = b.result

-- move: stage.end_partly
UPDATE onetray.stage SET {moved}, {ended}, result = b.result, error = b.error

-- move: stage.fail
UPDATE onetray.stage SET {moved}, {ended}, result = b.result, error = b.error

-- move: stage.reject
UPDATE onetray.stage SET {moved}, {ended}, error = b.error

-- move: stage.skip
UPDATE onetray.stage SET {moved}, {ended}

-- move: stage.carry_over
UPDATE onetray.stage SET {moved}, {ended}

-- move: stage.cancel
UPDATE onetray.stage SET {moved}, {ended}, result = b.result

-- move: flow.open
UPDATE onetray.flow SET {moved}

-- move: flow.start
UPDATE onetray.flow SET {moved}, started_at = coalesce(flow.started_at, b.at)

-- move: flow.wait
UPDATE onetray.flow SET {moved}

-- move: flow.proceed
UPDATE onetray.flow SET {moved}

-- move: flow.pause
UPDATE onetray.flow SET {moved}

-- move: flow.resume
UPDATE onetray.flow SET {moved}

-- move: flow.succeed
UPDATE onetray.flow SET {moved}, {ended}

-- move: flow.end_partly
UPDATE onetray.flow SET {moved}, {ended}

-- move: flow.fail
UPDATE onetray.flow SET {moved}, {ended}, error = b.error

-- move: flow.time_out
UPDATE onetray.flow SET {moved}, {ended}, error = b.error

-- move: flow.cancel
UPDATE onetray.flow SET {moved}, {ended}
