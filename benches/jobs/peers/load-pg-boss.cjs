// pg-boss as a contender of benches/jobs/peers-run.sh. Its workers pause half a second or more between two fetches of single jobs. So
// jobs are fetched and completed by calls of its API.
const items = Number(process.env.ITEMS);
const batch = Number(process.env.BATCH);
const concurrency = Number(process.env.CONNECTIONS);

async function add(boss) {
  let next = 0;
  const connection = async () => {
    while (next < items) {
      const first = next;
      next = Math.min(items, next + batch);
      const jobs = [];
      for (let n = first; n < next; n++) {
        jobs.push({ data: { n, text: "a payload of some length, as they are" } });
      }
      await (batch === 1 ? boss.send("load", jobs[0].data) : boss.insert("load", jobs));
    }
  };
  await Promise.all(Array.from({ length: concurrency }, connection));
}

async function processAll(boss) {
  let done = 0;
  const connection = async () => {
    while (done < items) {
      const jobs = await boss.fetch("load", { batchSize: batch });
      if (jobs.length > 0) await boss.complete("load", jobs.map((job) => job.id));
      done += jobs.length;
    }
  };
  await Promise.all(Array.from({ length: concurrency }, connection));
}

async function main() {
  const { createRequire } = require("node:module");
  const { pathToFileURL } = require("node:url");
  // The package is a module, which NODE_PATH does not name.
  const path = createRequire(`${process.env.NODE_PATH}/x`).resolve("pg-boss");
  const { PgBoss } = await import(pathToFileURL(path));
  const boss = new PgBoss({ connectionString: process.env.DATABASE, max: concurrency, supervise: false, schedule: false });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await boss.createQueue("load");
  console.log("ready");
  await add(boss);
  console.log("added");
  await processAll(boss);
  console.log("processed");
  await boss.stop({ graceful: false });
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
