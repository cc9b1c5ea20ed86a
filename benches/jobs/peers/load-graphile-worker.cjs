// graphile-worker as a contender of benches/jobs/peers-run.sh. In batches, jobs are fetched into a local queue and completed together.
const { makeWorkerUtils, run } = require("graphile-worker");

const items = Number(process.env.ITEMS);
const batch = Number(process.env.BATCH);
const concurrency = Number(process.env.CONNECTIONS);
const connectionString = process.env.DATABASE;
const quiet = new (require("graphile-worker").Logger)(() => () => {});

async function add(utils) {
  let next = 0;
  const connection = async () => {
    while (next < items) {
      const first = next;
      next = Math.min(items, next + batch);
      const specs = [];
      for (let n = first; n < next; n++) {
        specs.push({ identifier: "load", payload: { n, text: "a payload of some length, as they are" } });
      }
      await (batch === 1 ? utils.addJob("load", specs[0].payload) : utils.addJobs(specs));
    }
  };
  await Promise.all(Array.from({ length: concurrency }, connection));
}

async function processAll() {
  let done = 0;
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const load = async () => {
    if (++done === items) finish();
  };
  const batches = { localQueue: { size: Math.max(batch, concurrency) }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
  const runner = await run({
    preset: {
      worker: {
        connectionString,
        concurrentJobs: concurrency,
        maxPoolSize: concurrency + 2,
        logger: quiet,
        ...(batch === 1 ? {} : batches),
      },
    },
    noHandleSignals: true,
    taskList: { load },
  });
  await finished;
  // The last completions are written before the runner has stopped.
  await runner.stop();
}

async function main() {
  const utils = await makeWorkerUtils({ preset: { worker: { connectionString, maxPoolSize: concurrency, logger: quiet } } });
  await utils.migrate();
  console.log("ready");
  await add(utils);
  console.log("added");
  await processAll();
  console.log("processed");
  const left = await utils.withPgClient((client) => client.query("SELECT count(*)::int AS n FROM graphile_worker.jobs"));
  await utils.release();
  if (left.rows[0].n !== 0) throw new Error(`${left.rows[0].n} jobs are left`);
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
