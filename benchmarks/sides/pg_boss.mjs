// pg-boss, with its notifications, batches of 1,000, and two workers in the process.

import pg from "pg";
import { PgBoss } from "pg-boss";

import { began, leaveWithTheInput, listen, role, url } from "./say.mjs";

async function open(settings) {
  const boss = new PgBoss({ connectionString: url, ...settings });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function setUp() {
  const boss = await open();
  await boss.createQueue("noop", { notify: true });
  await boss.stop({ graceful: false });
}

async function submit() {
  const boss = await open({ supervise: false, schedule: false });
  const pool = new pg.Pool({ connectionString: url, max: 1 });
  await listen({
    one: (number) => boss.send("noop", { number }),
    many: (numbers) => boss.insert("noop", numbers.map((number) => ({ data: { number } }))),
    left: async () =>
      (await pool.query("SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND state < 'completed'")).rows[0].count,
  });
  await boss.stop({ graceful: false });
  await pool.end();
}

async function work() {
  const boss = await open({ max: 10, useListenNotify: true });
  const settings = { batchSize: 1000, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
  for (let worker = 0; worker < 2; worker++) {
    await boss.work("noop", settings, async (jobs) => {
      for (const job of jobs) began(job.data.number);
    });
  }
  leaveWithTheInput(() => boss.stop({ graceful: false }));
}

await { set_up: setUp, submit, work }[role]();
