// graphile-worker, with its local queue and outcomes written in batches.

import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";

import { began, leaveWithTheInput, listen, role, url } from "./say.mjs";

const logger = new Logger(() => () => {});
const connection = { connectionString: url, logger };

async function submit() {
  const utils = await makeWorkerUtils(connection);
  const pool = new pg.Pool({ connectionString: url, max: 1 });
  await listen({
    one: (number) => utils.addJob("noop", { number }),
    many: (numbers) => utils.addJobs(numbers.map((number) => ({ identifier: "noop", payload: { number } }))),
    left: async () => (await pool.query("SELECT count(*) FROM graphile_worker._private_jobs")).rows[0].count,
  });
  await utils.release();
  await pool.end();
}

async function work() {
  const runner = await run({
    preset: {
      worker: {
        ...connection,
        concurrentJobs: 100,
        maxPoolSize: 10,
        pollInterval: 2000,
        localQueue: { size: 2000 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
    taskList: { noop: (payload) => began(payload.number) },
    noHandleSignals: true,
  });
  leaveWithTheInput(() => runner.stop());
  await runner.promise;
}

await { set_up: () => runMigrations(connection), submit, work }[role]();
