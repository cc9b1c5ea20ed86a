// The conformance guest in JavaScript: the text attribute `do` says what to do.
import { DeadLetter, Delay, Retry, addItems, currentJob, remaining, shouldStop } from "./hostler.js";

let current; // the `do` of the message, for messageEnd: the hooks of one message share an instance

export function messageStart(message) {
  current = message.attributes.do;
  if (current === "hooks") console.error("start");
}

export function messageEnd(report) {
  if (current === "hooks") console.error(`end ${report.outcome}`);
}

export default async function handle(message) {
  await undefined; // as a handler that has something to wait for
  switch (message.attributes.do) {
    case "ack":
      return;
    case "reply":
      return message.body;
    case "retry":
      throw new Retry();
    case "delay":
      throw new Delay(Number(message.text()));
    case "dead-letter":
      throw new DeadLetter(message.text());
    case "error":
      throw new Error(message.text());
    case "trap":
      // Nobody can catch it. What the handler itself throws, the SDK makes an error.
      setTimeout(() => { throw new Error("from a timer"); });
      return new Promise(() => {});
    case "loop":
      for (;;);
    case "length":
      return String(message.body.length);
    case "attributes":
      return JSON.stringify(Object.fromEntries(Object.entries(message.attributes).filter(([, value]) => typeof value === "string")));
    case "context":
      return JSON.stringify({ attempt: message.attempt, remaining: remaining() > 0, stop: shouldStop() });
    case "job":
      try {
        addItems("child", [{ payload: 1, dedupeKey: "one" }]);
        return "added";
      } catch (error) {
        return currentJob() === undefined ? error.kind : "current";
      }
    case "hooks":
      console.error("handle");
      return;
    default:
      throw new Error(`nothing to do: ${message.attributes.do}`);
  }
}
