// Speaks to a server as Jobnik's SDK does: a producer, and workers that poll. Prints what it saw as JSON.
// Usage: node jobnik_client.mjs URL TYPE TASKS WORKERS
const [base, type, taskCount, workerCount] = [process.argv[2], process.argv[3], +process.argv[4], +process.argv[5]]
const RETRIED = new Set([502, 503, 504])

async function send(method, path, body, attempt = 1) {
  const headers = body === undefined ? {} : { 'content-type': 'application/json' }
  const response = await fetch(base + path, { method, headers, body: JSON.stringify(body) })
  if (RETRIED.has(response.status) && attempt < 4) {
    await sleep(50 * attempt)
    return send(method, path, body, attempt + 1)
  }
  return { status: response.status, body: await response.json() }
}

async function need(method, path, body) {
  const answer = await send(method, path, body)
  if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`)
  return answer.body
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// Producer.

const createJob = (name, data, priority) => need('POST', '/v1/jobs', { name, data, priority })

async function createStage(jobId, stageType, data, startAsWaiting = false) {
  await need('GET', `/v1/jobs/${jobId}`)
  return need('POST', `/v1/jobs/${jobId}/stage`, { type: stageType, data, startAsWaiting })
}

async function createTasks(stageId, stageType, tasks) {
  const stage = await need('GET', `/v1/stages/${stageId}`)
  if (stage.type !== stageType) throw new Error(`the stage has the type ${stage.type}`)
  return need('POST', `/v1/stages/${stageId}/tasks`, tasks)
}

// Consumer and worker.

const runs = {}
let refused = 0

async function mark(taskId, status) {
  const task = await need('GET', `/v1/tasks/${taskId}`)
  if (task.status !== 'IN_PROGRESS') throw new Error(`${taskId} is ${task.status}`)
  await need('PUT', `/v1/tasks/${taskId}/status`, { status })
}

async function handle(task, stageType) {
  const stage = await need('GET', `/v1/stages/${task.stageId}`)
  const job = await need('GET', `/v1/jobs/${stage.jobId}`)
  if (stage.type !== stageType || stage.status !== 'IN_PROGRESS' || job.status !== 'IN_PROGRESS') {
    throw new Error(`${stage.type} ${stage.status} ${job.status}`)
  }
  const seen = (runs[task.id] ??= [])
  seen.push(task.attempts)
  // Every fifth task fails on its first attempt.
  const status = task.data.n % 5 === 0 && task.attempts === 0 ? 'FAILED' : 'COMPLETED'
  await mark(task.id, status)
  if (status === 'FAILED') return
  // Whoever reports again gets nowhere.
  const again = await send('PUT', `/v1/tasks/${task.id}/status`, { status: 'COMPLETED' })
  refused += again.status === 400 ? 1 : 0
}

let over = false

async function work(stageType) {
  while (!over) {
    const { status, body } = await send('PATCH', `/v1/stages/${stageType}/tasks/dequeue`)
    if (status === 200) await handle(body, stageType)
    else if (status === 404) await sleep(20)
    else throw new Error(`dequeue: ${status} ${JSON.stringify(body)}`)
  }
}

async function untilEnded(jobId) {
  for (;;) {
    const job = await need('GET', `/v1/jobs/${jobId}?should_return_stages=true`)
    if (['COMPLETED', 'FAILED', 'ABORTED'].includes(job.status)) return job
    await sleep(50)
  }
}

const job = await createJob('photos', { album: 7 }, 'HIGH')
const first = await createStage(job.id, `${type}-first`, { width: 640 })
const second = await createStage(job.id, `${type}-second`, { width: 320 }, true)
const tasks = Array.from({ length: taskCount }, (_, n) => ({ data: { n }, maxAttempts: 2 }))
for (const [stage, name] of [[first, 'first'], [second, 'second']]) {
  await createTasks(stage.id, `${type}-${name}`, tasks)
}
const workers = Array.from({ length: workerCount }, (_, i) => work(`${type}-${i % 2 ? 'first' : 'second'}`))
const failed = Promise.all(workers)
const approved = (async () => {
  while ((await need('GET', `/v1/stages/${first.id}`)).status !== 'COMPLETED') await sleep(20)
  await need('PUT', `/v1/stages/${second.id}/status`, { status: 'PENDING' })
})()
const ended = await Promise.race([untilEnded(job.id), failed.then(() => new Promise(() => {}))])
await approved
over = true
await failed
console.log(JSON.stringify({ job: ended, runs, refused }))
