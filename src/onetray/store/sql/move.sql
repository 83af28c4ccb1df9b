-- One UPDATE for each transition: it says what changes besides the state. The guard (key, version, state, fence),
-- the new state and the event are added from the lifecycle's table when this file is loaded.
-- b is the batch, one row for each task; {last} is the time of the move, never before the one before.

-- move: claim
UPDATE onetray.task SET {moved}, attempts = task.attempts + 1, owner = b.worker, lease = b.lease

-- move: start
UPDATE onetray.task SET {moved}, started_at = {last}

-- move: succeed
UPDATE onetray.task SET {moved}, {ended}, result = b.result, error = NULL

-- move: start, succeed
UPDATE onetray.task SET {moved}, {ended}, result = b.result, error = NULL,
    started_at = {greatest}(b.began, task.updated_at)

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
