//! The SQS driver's place. There is none so far: `host::connect` refuses `queue.driver = "sqs"` and says so.
