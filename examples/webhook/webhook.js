// Delivers a message to a URL as a signed webhook. The status of the response decides the outcome.
import { DeadLetter, Delay, remaining, shouldStop } from "../../sdk/js/hostler.js";

/** The longest wait for an answer. It ends sooner if the processing timeout is near, or the host drains. In milliseconds. */
const PATIENCE = 10_000;
const RESERVE = 500;
const DRAINING = 2_000;

/** The longest wait that a receiver may ask for, in seconds: SQS hides a message for no longer. */
const LONGEST_DELAY = 12 * 3600;

/** Characters of an answer that go into a reason. */
const EXCERPT = 200;

/** A failure that may pass. As an error, not as a Retry, its text is the reason in the log and in the dead-letter queue. */
class Undelivered extends Error {
  name = "Undelivered";
}

/** The handler; `env()` gives the variables that the consumer grants. */
export function deliverer(env) {
  return async function deliver(message) {
    const { WEBHOOK_URL, WEBHOOK_SECRET } = env();
    if (!WEBHOOK_SECRET) throw new Error("allow.env gives no WEBHOOK_SECRET");
    const url = message.attributes.url ?? WEBHOOK_URL;
    if (!isWeb(url)) throw new DeadLetter(`this is no URL to deliver to: ${url}`);
    judge(
      await post(url, message.body, {
        "content-type": message.contentType ?? "application/octet-stream",
        "idempotency-key": message.id,
        ...(await signed(message, WEBHOOK_SECRET)),
      }),
    );
  };
}

/** The headers of Standard Webhooks. A secret is `whsec_` and Base64, or any text; of several, parted by spaces, each signs. */
export async function signed({ id, body }, secrets, seconds = Math.floor(Date.now() / 1000)) {
  const head = new TextEncoder().encode(`${id}.${seconds}.`);
  const content = new Uint8Array(head.length + body.length);
  content.set(head);
  content.set(body, head.length);
  const signatures = secrets.trim().split(/\s+/).map(async (secret) => {
    const bytes = secret.startsWith("whsec_")
      ? Uint8Array.from(atob(secret.slice(6)), (letter) => letter.charCodeAt(0))
      : new TextEncoder().encode(secret);
    const key = await crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
    const mac = new Uint8Array(await crypto.subtle.sign("HMAC", key, content));
    return `v1,${btoa(String.fromCharCode(...mac))}`;
  });
  return {
    "webhook-id": id,
    "webhook-timestamp": String(seconds),
    "webhook-signature": (await Promise.all(signatures)).join(" "),
  };
}

/** Returns if the receiver has accepted the message; otherwise throws the outcome. */
function judge({ status, retryAfter, excerpt }) {
  if (status >= 200 && status < 300) return;
  const said = `the receiver said ${status}${excerpt && `: ${excerpt}`}`;
  const wait = status === 429 || status === 503 ? waitOf(retryAfter) : undefined;
  if (wait !== undefined) {
    console.error(said);
    throw new Delay(wait);
  }
  // 408 and 425 are about this attempt, not about the message.
  if (status >= 500 || [408, 425, 429].includes(status)) throw new Undelivered(said);
  throw new DeadLetter(said);
}

/** Seconds by a header `Retry-After`, which holds seconds or a date; a date may have passed, so at least one. */
export function waitOf(header, now = Date.now()) {
  const text = header?.trim();
  if (!text) return undefined;
  const seconds = /^\d+$/.test(text) ? Number(text) : (Date.parse(text) - now) / 1000;
  return Number.isNaN(seconds) ? undefined : Math.min(Math.max(Math.ceil(seconds), 1), LONGEST_DELAY);
}

/** What came back. Throws if nothing did, or not in time. */
async function post(url, body, headers) {
  const late = deadline();
  try {
    return await Promise.race([exchange(url, { method: "POST", headers, body }), late.promise]);
  } catch (error) {
    throw error instanceof Undelivered ? error : new Undelivered(`no answer: ${error}`);
  } finally {
    late.clear();
  }
}

/** A redirect is not followed: the signature is for this URL. */
async function exchange(url, request) {
  const response = await fetch(url, { ...request, redirect: "manual" });
  const excerpt = response.ok ? "" : await begin(response);
  return { status: response.status, retryAfter: response.headers.get("retry-after"), excerpt };
}

/** A promise that fails when the time for an answer is over. The engine's `fetch` heeds no AbortSignal while it waits. */
function deadline() {
  let over = Date.now() + Math.min(PATIENCE, remaining() - RESERVE);
  let timer;
  const promise = new Promise((_, reject) => {
    timer = setInterval(() => {
      if (shouldStop()) over = Math.min(over, Date.now() + DRAINING);
      if (Date.now() >= over) reject(new Undelivered("no answer in time"));
    }, 100);
  });
  return { promise, clear: () => clearInterval(timer) };
}

/** The first characters of a body, on one line. The rest is not read: it may be endless. */
async function begin(response) {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  while (reader && text.length < EXCERPT) {
    const { done, value } = await reader.read();
    if (done) break;
    text += decoder.decode(value, { stream: true });
  }
  await reader?.cancel();
  return [...text].slice(0, EXCERPT).join("").replace(/\s+/g, " ").trim();
}

function isWeb(url) {
  try {
    return ["http:", "https:"].includes(new URL(url).protocol);
  } catch {
    return false;
  }
}
