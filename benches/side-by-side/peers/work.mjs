// The work on a message, as in work/src/lib.rs. When run as a program, prints the duration of the work in microseconds.
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';

const ROUNDS = 8;
const encoder = new TextEncoder();

export function work(body) {
  const order = JSON.parse(body);
  let sum = 0;
  for (const amount of order.amounts) sum = (sum + amount) >>> 0;
  let hash = sum ^ 0x811c9dc5;
  const text = encoder.encode(order.text);
  for (let round = 0; round < ROUNDS; round++) {
    for (const byte of text) hash = Math.imul(hash ^ byte, 0x01000193);
  }
  if (hash >>> 0 !== order.check) throw new Error(`order ${order.number} is not what it says`);
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  for (let turn = 0; turn < 20000; turn++) work(argv[2]);
  const turns = 20000;
  const before = process.cpuUsage();
  for (let turn = 0; turn < turns; turn++) work(argv[2]);
  console.log(process.cpuUsage(before).user / turns);
}
