// SDK for hostler handlers in JavaScript. A handler is a module. Its default export is a function of a Message:
//
//     export default async function (message) { return "Hello, " + message.json().name; }
//
// The function returns undefined (ack), or a string or Uint8Array (reply). It can also throw or return an outcome: Ack, Retry, Delay or
// DeadLetter. Any other exception is an error. The message then goes to the consumer's retry policy, with the text of the exception as
// the reason. The stack goes to stderr.
//
// For batches, the module exports handleBatch(messages), which returns a list with the answer for each message.
//
// Hooks are exports of the same module: messageStart(message), messageEnd(report), processingTimeout(message, elapsedMs),
// stateChanged(from, to). hostler calls a hook only if the world of the component exports it.
//
// The component is built from component.js. Only component.js imports hostler's functions, and passes them to component(). Therefore,
// tests can run this module in Node.

/** @typedef {Record<string, string | Uint8Array>} Attributes */
/** @typedef {string | Uint8Array | Outcome | null | void} Answer */
/** @typedef {{ messageId: string, attempt: number, outcome: string, reason?: string, durationMs: number }} Report the result of a message */

/** One delivery of a message. */
export class Message {
  /** @param {{ body?: string | Uint8Array, attributes?: Attributes, id?: string, channel?: string, contentType?: string, attempt?: number,
   *   enqueuedAt?: Date, groupId?: string, routingKey?: string }} [fields] */
  constructor({ body = "", attributes = {}, id = "", channel = "", contentType, attempt = 1, enqueuedAt = new Date(0), groupId, routingKey } = {}) {
    this.body = bytes(body);
    this.attributes = attributes;
    this.id = id;
    this.channel = channel;
    this.contentType = contentType;
    /** Number of this delivery, counted by the queue. The first is 1. */
    this.attempt = attempt;
    /** Time at which the queue accepted the message. */
    this.enqueuedAt = enqueuedAt;
    this.groupId = groupId;
    this.routingKey = routingKey;
  }

  /** Returns the body as text. Throws if the body is not valid UTF-8. */
  text() {
    return new TextDecoder("utf-8", { fatal: true }).decode(this.body);
  }

  /** Parses the body as JSON. @returns {any} */
  json() {
    return JSON.parse(this.text());
  }
}

/** Outcome of a message. Throw or return one of the four subclasses below. */
export class Outcome extends Error {
  name = this.constructor.name;
}

/** The message is done. */
export class Ack extends Outcome {}

/** The attempt failed. The retry policy decides whether and when the next one follows. The text, if any, goes to stderr. */
export class Retry extends Outcome {}

/** Deliver the message again after this number of seconds. The retry policy limits the number of attempts. */
export class Delay extends Outcome {
  /** @param {number} seconds */
  constructor(seconds) {
    super(`${seconds} s`);
    this.seconds = Math.ceil(seconds);
    if (!(this.seconds >= 0 && this.seconds < 2 ** 32)) throw new RangeError(`a delay is 0 to ${2 ** 32 - 1} seconds, not ${seconds}`);
  }
}

/** The message can never succeed. hostler moves it to the dead-letter queue, with this reason. */
export class DeadLetter extends Outcome {
  /** @param {string} reason */
  constructor(reason) {
    super(reason);
  }
}

/** A message was not sent. kind is denied (the channel is not in allow.send), invalid (the message breaks a limit) or unavailable (the
 * queue did not accept the message this time). */
export class SendError extends Error {
  name = "SendError";

  /** @param {"denied" | "invalid" | "unavailable"} kind see above @param {string} text */
  constructor(kind, text) {
    super(`${kind}: ${text}`);
    this.kind = kind;
  }
}

/** A request to a job was not accepted. kind is no-job (the message is not an item of a job), invalid (the request breaks a rule) or full
 * (the attempt has asked for as much as one attempt may). */
export class JobError extends Error {
  name = "JobError";

  /** @param {"no-job" | "invalid" | "full"} kind see above @param {string} text */
  constructor(kind, text) {
    super(`${kind}: ${text}`);
    this.kind = kind;
  }
}

/** Functions of hostler:consumer/context, hostler:consumer/producer, hostler:consumer/jobs and hostler:consumer/batch. Set after component.js
 * has passed them to component(). */
let host;

/** Sends a message to a channel that allow.send names. Returns the id after the queue has stored the message durably.
 * delay: in seconds, at most 13 days.
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

/** Returns the milliseconds until the processing timeout stops this call. Without a host, returns Infinity. @returns {number} */
export function remaining() {
  return host ? Number(host.remainingMs()) : Infinity;
}

/** Returns true if the host is draining or the lease is lost. The handler should then finish early, or throw Retry. @returns {boolean} */
export function shouldStop() {
  return host ? host.shouldStop() : false;
}

/** Settles the message at this place of the batch now, with this answer in place of the one in the list. An Error that is no outcome is an
 * error. Returns false, and settles nothing, if there is no such message, if it has an answer, or if it is lost.
 * @param {number} index @param {Answer | Error} [given] @returns {boolean} */
export function done(index, given) {
  if (!host?.done) throw new Error("there is no batch: component() needs hostler:consumer/batch, or in a test your own done");
  return host.done(index, result(given));
}

/** Returns true once the message at this place of the batch is no longer this handler's: its lease was lost, or an operator cancelled it.
 * Its answer is ignored. Without a host, returns false. @param {number} index @returns {boolean} */
export function lost(index) {
  return host?.lost?.(index) ?? false;
}

/** Returns the job whose item the message is. Returns undefined if the message is not an item of a job, and without a host.
 * @returns {{ jobId: string, rootId: string, jobType: string, itemId: string, attempt: number } | undefined} */
export function currentJob() {
  return host?.current?.();
}

/** Adds items to a job of the same tree when this item succeeds: all of them or none. An attempt that fails adds nothing. target: id of
 * the job, or the type of a child of the current job. payload: any value that JSON.stringify accepts. One attempt adds at most 10,000
 * items and 16 MiB.
 * @param {string} target
 * @param {{ payload: any, dedupeKey?: string, serializeKey?: string, priority?: number }[]} items */
export function addItems(target, items) {
  ask("addItems", target, items.map(({ payload, priority = 0, ...keys }) => {
    const text = JSON.stringify(payload);
    if (text === undefined) throw new TypeError(`a payload has to be a JSON value, not ${typeof payload}`);
    return { ...keys, payload: text, priority };
  }));
}

/** Seals a job when this item succeeds, after the items are added: no more can be added to it. job: as target of addItems.
 * @param {string} job */
export function seal(job) {
  ask("seal", job);
}

/** Reports the progress of the item: the share that is done, from 0 to 1, and a text of at most 200 bytes. The latest report replaces the
 * others. It is shown although the item is not done.
 * @param {number} fraction @param {string} [text] */
export function progress(fraction, text = "") {
  ask("progress", fraction, text);
}

/** @param {string} name @param {any[]} values */
function ask(name, ...values) {
  if (!host?.[name]) throw new Error(`there is no host to ask: component() needs hostler:consumer/jobs, or in a test your own ${name}`);
  try {
    host[name](...values);
  } catch (error) {
    throw error?.payload ? new JobError(error.payload.tag, error.payload.val) : error;
  }
}

/** Returns the exports of component.js. Converts the module `app` to hostler's contract. `functions` are the functions of the host. */
export function component(app, functions) {
  host = functions;
  return {
    // The build of a component that exports a handler reads this property.
    get handler() {
      if (typeof app.default !== "function") {
        throw new TypeError("the handler is missing: index.js has to `export default` the function that takes a message");
      }
      return { handle: (message) => fallible(async () => outcome(await answer(app.default, received(message)))) };
    },
    // Each answer is what a handler may return, an Error, or a promise of one. If the function throws, the component traps, and hostler gives it each
    // message without an answer once more, alone, unless batch.on_trap is "fail".
    batchHandler: app.handleBatch && {
      handleBatch: async (messages) => {
        try {
          return await Promise.all(Array.from(await app.handleBatch(messages.map(received)), settled));
        } catch (error) {
          if (messages.length === 1) return [await settled(Promise.reject(error))]; // no other message is concerned
          throw error;
        }
      },
    },
    messageStart: app.messageStart && {
      messageStart: (message) => fallible(async () => void (await app.messageStart(received(message)))),
    },
    messageEnd: app.messageEnd && {
      messageEnd: async (report) => void (await app.messageEnd({ ...report, durationMs: Number(report.durationMs) })),
    },
    // If the hook returns nothing, throws. The component then traps, and on_processing_timeout of the config decides.
    processingTimeout: app.processingTimeout && {
      async processingTimeout(message, elapsedMs) {
        const given = await answer(app.processingTimeout, received(message), Number(elapsedMs));
        if (given == null) throw new TypeError("processingTimeout returned no outcome");
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

/** Waits for the answer for one message of a batch. What it throws is its answer. */
async function settled(given) {
  try {
    return result(await answer(() => given));
  } catch (error) {
    return { tag: "err", val: told(error) };
  }
}

/** Converts the answer for one message of a batch. */
function result(given) {
  try {
    if (given instanceof Error && !(given instanceof Outcome)) throw given;
    return { tag: "ok", val: outcome(given) };
  } catch (error) {
    return { tag: "err", val: told(error) };
  }
}

/** Converts an exception to an error of the contract, which needs the text as `payload`. An exception without `payload` would trap. */
async function fallible(call) {
  try {
    return await call();
  } catch (error) {
    const text = told(error);
    throw Object.assign(new Error(text), { payload: text });
  }
}

/** Writes an exception to stderr, and returns its text. */
function told(error) {
  const text = String(error);
  console.error(error?.stack ? `${text}\n${error.stack}` : text);
  return text;
}

function bytes(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  // Does not use instanceof, because values from the host have other constructors.
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  throw new TypeError(`a string or Uint8Array is wanted here, not ${value?.constructor?.name ?? value}`);
}
