// BullMQ, with jobs removed once they are done.

import { Queue, Worker } from "bullmq";

import { began, leaveWithTheInput, listen, role, url } from "./say.mjs";

const { hostname, port } = new URL(url);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };

async function submit() {
  const queue = new Queue("noop", { connection, defaultJobOptions: { removeOnComplete: true, removeOnFail: true } });
  await queue.waitUntilReady();
  await listen({
    one: (number) => queue.add("noop", { number }),
    many: (numbers) => queue.addBulk(numbers.map((number) => ({ name: "noop", data: { number } }))),
    left: () => queue.getJobCountByTypes("waiting", "active", "prioritized", "delayed"),
  });
  await queue.close();
}

async function work() {
  const worker = new Worker("noop", async (job) => began(job.data.number), { connection, concurrency: 300 });
  leaveWithTheInput(() => worker.close());
}

await { set_up: () => {}, submit, work }[role]();
