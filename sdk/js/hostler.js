// What a hostler handler in JavaScript needs. A handler is a module whose default export takes a Message:
//
//     export default async function (message) { return "Hello, " + message.json().name; }
//
// It answers undefined (ack), a string or Uint8Array (reply), or throws or returns an outcome: Ack, Retry, Delay, DeadLetter. Any other
// exception is an error: it goes to the consumer's retry policy with its text, and its stack to stderr.
//
// Hooks are exports of the same module: messageStart(message), messageEnd(report), processingTimeout(message, elapsedMs),
// stateChanged(from, to). They are called if the world that is built exports them.
//
// Only component.js, which is what is built, imports hostler's functions and hands them in; so all this runs in Node, for tests.

/** @typedef {Record<string, string | Uint8Array>} Attributes */
/** @typedef {string | Uint8Array | Outcome | null | void} Answer */
/** @typedef {{ messageId: string, attempt: number, outcome: string, reason?: string, durationMs: number }} Report how a message ended */

/** A message, as one delivery of it. */
export class Message {
  /** @param {{ body?: string | Uint8Array, attributes?: Attributes, id?: string, channel?: string, contentType?: string, attempt?: number,
   *   enqueuedAt?: Date, groupId?: string, routingKey?: string }} [fields] */
  constructor({ body = "", attributes = {}, id = "", channel = "", contentType, attempt = 1, enqueuedAt = new Date(0), groupId, routingKey } = {}) {
    this.body = bytes(body);
    this.attributes = attributes;
    this.id = id;
    this.channel = channel;
    this.contentType = contentType;
    /** Which delivery it is, by the queue's count; 1 is the first. */
    this.attempt = attempt;
    /** When the queue took it. */
    this.enqueuedAt = enqueuedAt;
    this.groupId = groupId;
    this.routingKey = routingKey;
  }

  /** The body as UTF-8; throws if it is not. */
  text() {
    return new TextDecoder("utf-8", { fatal: true }).decode(this.body);
  }

  /** The body as JSON. @returns {any} */
  json() {
    return JSON.parse(this.text());
  }
}

/** What is to become of a message: throw or return one of the four below. */
export class Outcome extends Error {
  name = this.constructor.name;
}

/** It is done. */
export class Ack extends Outcome {}

/** It failed: again, as the retry policy says. The text, if any, goes to stderr. */
export class Retry extends Outcome {}

/** Again after so many seconds, within the attempts of the retry policy. */
export class Delay extends Outcome {
  /** @param {number} seconds */
  constructor(seconds) {
    super(`${seconds} s`);
    this.seconds = Math.ceil(seconds);
    if (!(this.seconds >= 0 && this.seconds < 2 ** 32)) throw new RangeError(`a delay is 0 to ${2 ** 32 - 1} seconds, not ${seconds}`);
  }
}

/** It can never succeed: to the dead-letter queue, with the reason. */
export class DeadLetter extends Outcome {
  /** @param {string} reason */
  constructor(reason) {
    super(reason);
  }
}

/** A message was not sent. */
export class SendError extends Error {
  name = "SendError";

  /** @param {"denied" | "invalid" | "unavailable"} kind not in allow.send; breaks a limit; not this time @param {string} text */
  constructor(kind, text) {
    super(`${kind}: ${text}`);
    this.kind = kind;
  }
}

/** The functions of hostler:consumer/context and hostler:consumer/producer, once component.js has handed them in. */
let host;

/** Sends to a channel that allow.send names; answers the id once it is durably in the queue. delay: seconds, up to 13 days.
 * @param {string} channel @param {string | Uint8Array} body
 * @param {{ attributes?: Attributes, routingKey?: string, delay?: number, groupId?: string, dedupeKey?: string }} [options]
 * @returns {string} */
export function send(channel, body, { attributes = {}, ...options } = {}) {
  if (!host) throw new Error("there is no host to send by: a test hands one to component()");
  const named = Object.entries(attributes).map(([name, value]) => ({
    name,
    value: typeof value === "string" ? { tag: "text", val: value } : { tag: "binary", val: bytes(value) },
  }));
  try {
    return host.send(channel, bytes(body), { ...options, attributes: named });
  } catch (error) {
    throw error?.payload ? new SendError(error.payload.tag, error.payload.val) : error;
  }
}

/** Milliseconds until the processing timeout stops this call; endless without a host. @returns {number} */
export function remaining() {
  return host ? Number(host.remainingMs()) : Infinity;
}

/** Whether the host is draining or the lease is lost: finish early, or throw Retry. @returns {boolean} */
export function shouldStop() {
  return host ? host.shouldStop() : false;
}

/** What component.js exports: the module `app` in the shapes of hostler's contract, speaking to `functions`. */
export function component(app, functions) {
  host = functions;
  return {
    // Asked for while the component is built, by who exports a handler.
    get handler() {
      if (typeof app.default !== "function") {
        throw new TypeError("the handler is missing: index.js has to `export default` the function that takes a message");
      }
      return { handle: (message) => fallible(async () => outcome(await answer(app.default, received(message)))) };
    },
    messageStart: app.messageStart && {
      messageStart: (message) => fallible(async () => void (await app.messageStart(received(message)))),
    },
    messageEnd: app.messageEnd && {
      messageEnd: async (report) => void (await app.messageEnd({ ...report, durationMs: Number(report.durationMs) })),
    },
    // No answer is no decision: it traps, and on_processing_timeout of the config decides.
    processingTimeout: app.processingTimeout && {
      async processingTimeout(message, elapsedMs) {
        const given = await answer(app.processingTimeout, received(message), Number(elapsedMs));
        if (given == null) throw new TypeError("processingTimeout says not what becomes of the message");
        return outcome(given);
      },
    },
    stateChanged: app.stateChanged && {
      stateChanged: async (from, to) => void (await app.stateChanged(from, to)),
    },
  };
}

function received({ attributes, enqueuedAt, ...fields }) {
  const values = Object.fromEntries(attributes.map(({ name, value: { tag, val } }) => [name, tag === "text" ? val : bytes(val)]));
  return new Message({ ...fields, attributes: values, enqueuedAt: new Date(Number(enqueuedAt)) });
}

async function answer(handle, ...values) {
  try {
    return await handle(...values);
  } catch (error) {
    if (error instanceof Outcome) return error;
    throw error;
  }
}

function outcome(given) {
  if (given == null || given instanceof Ack) return { tag: "ack" };
  if (given instanceof Retry) {
    if (given.message) console.error(`retry: ${given.message}`);
    return { tag: "retry" };
  }
  if (given instanceof Delay) return { tag: "delay", val: given.seconds };
  if (given instanceof DeadLetter) return { tag: "dead-letter", val: given.message };
  return { tag: "reply", val: bytes(given) };
}

/** The contract takes the error's text as `payload`; an exception without one would trap. */
async function fallible(call) {
  try {
    return await call();
  } catch (error) {
    const text = String(error);
    console.error(error?.stack ? `${text}\n${error.stack}` : text);
    throw Object.assign(new Error(text), { payload: text });
  }
}

function bytes(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  // Not instanceof: what the host hands in has constructors of its own.
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  throw new TypeError(`a string or Uint8Array is wanted here, not ${value?.constructor?.name ?? value}`);
}
