// A receiver to try the example with: checks the signature, and answers as the path says, such as /429/30 (Retry-After: 30).
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const key = Buffer.from(process.env.WEBHOOK_SECRET ?? "");

createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  const [, status, wait] = request.url.split("/");
  if (!genuine(request.headers, body)) {
    response.writeHead(401).end("bad signature");
  } else {
    if (wait) response.setHeader("retry-after", wait);
    response.writeHead(Number(status) || 204).end();
  }
  console.log(response.statusCode, request.headers["webhook-id"], body.toString());
}).listen(8080, "127.0.0.1");

/** Signed with our key, and less than five minutes old. */
function genuine({ "webhook-id": id, "webhook-timestamp": seconds, "webhook-signature": signatures = "" }, body) {
  const expected = createHmac("sha256", key).update(`${id}.${seconds}.`).update(body).digest();
  const given = signatures.split(" ").map((signature) => Buffer.from(signature.replace(/^v1,/, ""), "base64"));
  const isOurs = given.some((mac) => mac.length === expected.length && timingSafeEqual(mac, expected));
  return isOurs && Math.abs(Date.now() / 1000 - Number(seconds)) < 300;
}
