// sqs-consumer, as its users run it: `consumer.mjs batch|each`. Each consumer processes up to ten messages at a time. The number of
// consumers follows from the concurrency.
import { argv, env } from 'node:process';
import { Consumer } from 'sqs-consumer';
import { SQSClient } from '@aws-sdk/client-sqs';
import { work } from './work.mjs';

const concurrency = Number(env.BENCH_CONCURRENCY);
const handlers = {
  batch: {
    handleMessageBatch: async (messages) => {
      for (const message of messages) work(message.Body);
      return messages;
    },
    batchSize: 10,
  },
  each: {
    handleMessage: async (message) => {
      work(message.Body);
      return message;
    },
    batchSize: Math.min(concurrency, 10),
  },
};
const sqs = new SQSClient({ endpoint: env.BENCH_ENDPOINT });

for (let started = 0; started < concurrency; started += 10) {
  const consumer = Consumer.create({ queueUrl: env.BENCH_QUEUE_URL, sqs, ...handlers[argv[2]] });
  for (const event of ['error', 'processing_error', 'timeout_error']) consumer.on(event, console.error);
  consumer.start();
}
