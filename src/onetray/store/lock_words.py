"""Words for how statements find and lock the rows that they want on each database: see sql_template.py.

Owns what a database has to be told so that it looks at no other rows, as its planner or its lock manager would. SQLite
locks the whole database: its words for locks are empty.
"""

LOCKS = {
    "for_update": "FOR UPDATE",
    "for_no_key_update": "FOR NO KEY UPDATE",
    "for_update_of_task": "FOR NO KEY UPDATE OF task",
    "for_update_of_bulk": "FOR UPDATE OF o",
    "for_update_of_schedule": "FOR UPDATE OF c",
    "skip_locked": "FOR UPDATE OF r, t SKIP LOCKED",
    "skip_locked_r": "FOR UPDATE OF r SKIP LOCKED",
    "skip_locked_t": "FOR UPDATE OF t SKIP LOCKED",
    "skip_locked_f": "FOR UPDATE OF f SKIP LOCKED",
    "skip_locked_flow": "FOR NO KEY UPDATE SKIP LOCKED",
    "skip_locked_due": "FOR UPDATE SKIP LOCKED",
    "skip_locked_keys": "FOR UPDATE SKIP LOCKED",
    "skip_locked_c": "FOR UPDATE OF c SKIP LOCKED",
    "skip_locked_k": "FOR UPDATE OF k SKIP LOCKED",
    "skip_locked_l": "FOR NO KEY UPDATE OF l SKIP LOCKED",
    "skip_locked_empty": "FOR UPDATE OF l SKIP LOCKED",
    "for_update_of_k": "FOR UPDATE OF k",
    "for_no_key_update_of_l": "FOR NO KEY UPDATE OF l",
    "for_key_share": "FOR KEY SHARE",
    "skip_locked_x": "FOR NO KEY UPDATE OF x SKIP LOCKED",
}
"""On PostgreSQL. The letters are those of the tables in the statements."""

OF_SQLITE = {
    **dict.fromkeys(LOCKS, ""),
    "task_of_r": "r.task",
    "key_of_b": "b.key",
    "unlocked_r": "TRUE",
    # The tasks t of a stage: all, after a key, between two keys.
    "all_in_stage": "t.stage = :stage",
    "after_in_stage": "t.stage = :stage AND t.key > :after",
    "in_span": "t.stage = :stage AND t.key > :after AND t.key <= :upto",
    "claims_under_way": "SELECT '' WHERE 0",
    # By the keys of the tasks: the rank of a ready row is that of its task.
    "claimable_of_lanes": "SELECT -t.priority AS rank, {rest_of_claimable} FROM {ids:keys:bigint} "
    "JOIN onetray.task AS t ON t.key IN (SELECT r.task FROM onetray.ready AS r WHERE r.queue = -i.value "
    "ORDER BY r.queue, r.rank, r.task LIMIT :limit)",
    "blocked_by_each": "FROM {ids:keys:bigint} JOIN onetray.lane AS l ON l.key IN (SELECT x.key "
    "FROM onetray.lane AS x WHERE x.state = 2 AND x.blocked_on = i.value "
    "ORDER BY x.blocked_on, x.rank, x.turn, x.key LIMIT :limit)",
    # Ready tasks: of the lane l; of the queue q and a kind; of a queue and a kind that i lists. CROSS JOIN keeps
    # the order of the tables: else SQLite may read all ready tasks of the queue.
    "ready_of_l": "CROSS JOIN onetray.ready AS r ON r.queue = -l.key",
    "ready_of_kind": "CROSS JOIN onetray.ready AS r ON r.queue = q.key AND r.kind = :kind",
    "ready_of_full_queue": "CROSS JOIN onetray.ready AS r ON r.queue = i.value",
    "ready_of_full_kind": "CROSS JOIN onetray.ready AS r ON r.queue = q.key AND r.kind = i.value",
}

OF_POSTGRES = {
    **LOCKS,
    # Only an index scan can find these, row by row. With `=` the planner may also read a whole index in order and
    # compare each of its rows, and does so if it takes the table for empty: by statistics from before a burst.
    "task_of_r": "ANY (ARRAY[r.task])",
    "key_of_b": "ANY (ARRAY[b.key])",
    # What other claims have locked is left out, and nothing else: their transactions are in progress. SKIP LOCKED would
    # ask the lock manager about each such row, which takes ten times as long; with eight workers there are thousands.
    "unlocked_r": "(r.xmax = 0 OR CAST(r.xmax AS text) <> ALL (ARRAY(SELECT "
    "CAST(CAST(CAST(x AS text) AS bigint) & 4294967295 AS text) FROM pg_snapshot_xip(pg_current_snapshot()) AS x)))",
    # For `t.stage = :stage ORDER BY t.stage, t.key` the planner may scan the primary key of all tasks to find those
    # of the stage.
    "all_in_stage": "t.stage >= :stage AND t.stage <= :stage",
    "after_in_stage": "(t.stage, t.key) > (:stage, :after) AND t.stage <= :stage",
    # The keys bound such a scan, too.
    "in_span": "(t.stage, t.key) > (:stage, :after) AND (t.stage, t.key) <= (:stage, :upto) "
    "AND t.key > :after AND t.key <= :upto AND t.stage IS NOT NULL",
    "claims_under_way": "SELECT DISTINCT p.virtualtransaction FROM pg_locks AS p "
    "WHERE p.relation = CAST('onetray.ready' AS regclass) AND p.mode = 'RowShareLock' "
    "AND p.pid <> pg_backend_pid() AND p.database = "
    "(SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())",
    # For a list of keys, each with a limit of its own.
    "claimable_of_lanes": "SELECT r.rank, {rest_of_claimable} FROM {each_limited} CROSS JOIN LATERAL ("
    "SELECT x.rank, x.task FROM onetray.ready AS x WHERE x.queue = CAST(-i.value AS integer) "
    "ORDER BY x.queue, x.rank, x.task LIMIT i.n FOR UPDATE OF x SKIP LOCKED) AS r "
    "JOIN onetray.task AS t ON t.key = {task_of_r} FOR UPDATE OF t SKIP LOCKED",
    "blocked_by_each": "FROM {each_limited} CROSS JOIN LATERAL ("
    "SELECT x.key, x.queue, x.kind, x.fair, x.rank, x.turn, x.value, x.weight FROM onetray.lane AS x "
    "WHERE x.state = 2 AND x.blocked_on = i.value "
    "ORDER BY x.blocked_on, x.rank, x.turn, x.key LIMIT i.n {skip_locked_x}) AS l",
    # A join would be a hash of all ready tasks.
    "ready_of_l": "CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = -l.key "
    "ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r",
    "ready_of_kind": "CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = q.key "
    "AND x.kind = :kind ORDER BY x.queue, x.kind, x.rank, x.task LIMIT :most) AS r",
    "ready_of_full_queue": "CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = i.value "
    "ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r",
    "ready_of_full_kind": "CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = q.key "
    "AND x.kind = i.value ORDER BY x.queue, x.kind, x.rank, x.task LIMIT :most) AS r",
    "each_limited": "unnest(:keys::bigint[], :limits::bigint[]) AS i(value, n)",
}
