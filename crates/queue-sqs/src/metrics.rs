//! Usage data for queues and topics, from CloudWatch.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use aws_sdk_cloudwatch::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{Dimension, Metric, MetricDataQuery, MetricDataResult, MetricStat, StatusCode};

use super::Service;
use super::fault::Fault;
use hostler_queue::{QueueError, QueueUse};

/// Maximum number of metrics per call (AWS limit of GetMetricData: 500).
const PER_CALL: usize = 500;

/// Approximate number of data points that are requested per metric. Only the sum of the points is used.
const POINTS: u64 = 72;

const DAY: u64 = 86_400;

/// One metric of one resource, whose data points are summed.
struct Series<'a> {
    namespace: &'static str,
    metric: &'static str,
    dimension: &'static str,
    resource: &'a str,
}

const fn of_queue<'a>(metric: &'static str, resource: &'a str) -> Series<'a> {
    Series { namespace: "AWS/SQS", metric, dimension: "QueueName", resource }
}

pub(super) async fn queue_use(
    service: &Service,
    names: &[String],
    over: Duration,
) -> Result<Vec<Option<QueueUse>>, QueueError> {
    let metrics = ["NumberOfMessagesSent", "NumberOfMessagesReceived", "NumberOfEmptyReceives"];
    let series: Vec<_> = names.iter().flat_map(|name| metrics.map(|metric| of_queue(metric, name))).collect();
    let sums = sums(service, &series, over).await?;
    let known = sums.chunks(metrics.len()).map(|sums| match sums {
        [None, None, None] => None,
        [sent, received, empty] => {
            let [sent, received, empty_receives] = [sent, received, empty].map(|sum| sum.unwrap_or(0));
            Some(QueueUse { sent, received, empty_receives })
        }
        _ => None,
    });
    Ok(known.collect())
}

pub(super) async fn published(
    service: &Service,
    names: &[String],
    over: Duration,
) -> Result<Vec<Option<u64>>, QueueError> {
    let of_topic = |resource| Series {
        namespace: "AWS/SNS",
        metric: "NumberOfMessagesPublished",
        dimension: "TopicName",
        resource,
    };
    let series: Vec<_> = names.iter().map(|name| of_topic(name)).collect();
    sums(service, &series, over).await
}

/// Returns the sum of each series over a period of this length that ends now. `None`: the series has no data points.
async fn sums(service: &Service, series: &[Series<'_>], over: Duration) -> Result<Vec<Option<u64>>, QueueError> {
    let client = service.clients.cloudwatch();
    let end = SystemTime::now();
    let start = end.checked_sub(over).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut sums = Vec::with_capacity(series.len());
    for batch in series.chunks(PER_CALL) {
        let queries = batch.iter().enumerate().map(|(n, series)| query(n, series, over)).collect::<Vec<_>>();
        let asked = client.get_metric_data().set_metric_data_queries(Some(queries));
        let asked = asked.start_time(DateTime::from(start)).end_time(DateTime::from(end));
        let mut pages = asked.into_paginator().send();
        let mut answers = Answers::default();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| fault(&error))?;
            page.metric_data_results.unwrap_or_default().into_iter().for_each(|result| answers.add(result));
        }
        for (n, series) in batch.iter().enumerate() {
            sums.push(answers.sum(n).map_err(|fault| {
                let Series { metric, resource, .. } = series;
                QueueError::Unavailable(format!("GetMetricData: {metric} of {resource}: {fault}"))
            })?);
        }
    }
    Ok(sums)
}

/// Converts the error of a GetMetricData call. An answer with the HTTP status 404, 405 or 501 but without an error code
/// means that the server has no CloudWatch. Such a server is probably a stand-in for AWS.
fn fault<E>(error: &SdkError<E>) -> QueueError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let status = error.raw_response().map(|answer| answer.status().as_u16());
    match status {
        Some(status @ (404 | 405 | 501)) if error.code().is_none() => QueueError::Refused(format!(
            "GetMetricData: this server has no CloudWatch metrics (HTTP status {status}), and without them nothing tells which \
             queues are unused; AWS has them, and AWS_ENDPOINT_URL_CLOUDWATCH names another server that has"
        )),
        _ => Fault::of("GetMetricData", error).into(),
    }
}

fn query(n: usize, series: &Series<'_>, over: Duration) -> MetricDataQuery {
    let dimension = Dimension::builder().name(series.dimension).value(series.resource).build();
    let metric = Metric::builder().namespace(series.namespace).metric_name(series.metric).dimensions(dimension).build();
    let stat = MetricStat::builder().metric(metric).period(period(over)).stat("Sum").build();
    MetricDataQuery::builder().id(id(n)).metric_stat(stat).build()
}

/// Returns the id of a query within its call. AWS requires a lower-case letter at the start.
fn id(n: usize) -> String {
    format!("m{n}")
}

/// Returns the interval between data points in seconds. CloudWatch keeps one-minute points for 15 days, five-minute
/// points for 63 days, and one-hour points for longer. Therefore, the interval is a multiple of the resolution of the
/// oldest points.
fn period(over: Duration) -> i32 {
    let seconds = over.as_secs();
    let step = match seconds {
        _ if seconds <= 14 * DAY => 60,
        _ if seconds <= 62 * DAY => 300,
        _ => 3600,
    };
    i32::try_from((seconds / POINTS).max(1).next_multiple_of(step)).unwrap_or(i32::MAX - i32::MAX % 3600)
}

/// Answers received so far, by query. The points of one metric may be in several pages.
#[derive(Default)]
struct Answers(HashMap<String, Answer>);

#[derive(Default)]
struct Answer {
    sum: Option<f64>,
    status: Option<StatusCode>,
}

impl Answers {
    fn add(&mut self, result: MetricDataResult) {
        let answer = self.0.entry(result.id.unwrap_or_default()).or_default();
        let values = result.values.unwrap_or_default();
        if !values.is_empty() {
            answer.sum = Some(answer.sum.unwrap_or(0.0) + values.iter().sum::<f64>());
        }
        answer.status = result.status_code;
    }

    /// Returns the sum of the points of the n-th query. An incomplete answer is an error, because it would make a used
    /// resource look unused.
    fn sum(&self, n: usize) -> Result<Option<u64>, String> {
        let answer = self.0.get(&id(n)).ok_or("no answer")?;
        match &answer.status {
            Some(StatusCode::Complete) => Ok(answer.sum.map(whole)),
            Some(other) => Err(format!("the answer is not complete but {}", other.as_str())),
            None => Err("the answer has no status".to_owned()),
        }
    }
}

/// Rounds a sum up to a count of messages, so that any use counts as at least one message. A negative sum counts as 0.
/// A sum above the maximum of `u64` becomes that maximum.
fn whole(sum: f64) -> u64 {
    sum.max(0.0).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(id: &str, values: &[f64], status: StatusCode) -> MetricDataResult {
        MetricDataResult::builder().id(id).set_values(Some(values.to_vec())).status_code(status).build()
    }

    #[test]
    fn points_of_all_pages_add_up() {
        let mut answers = Answers::default();
        answers.add(result("m0", &[1.0, 2.0], StatusCode::PartialData));
        answers.add(result("m1", &[], StatusCode::Complete));
        answers.add(result("m0", &[4.0], StatusCode::Complete));
        answers.add(result("m2", &[0.0], StatusCode::Complete));
        assert_eq!((answers.sum(0), answers.sum(1), answers.sum(2)), (Ok(Some(7)), Ok(None), Ok(Some(0))));
    }

    #[test]
    fn a_part_of_an_answer_is_none() {
        let mut answers = Answers::default();
        for (id, status) in [("m0", StatusCode::PartialData), ("m1", StatusCode::Forbidden)] {
            answers.add(result(id, &[0.0], status));
        }
        assert!(answers.sum(0).unwrap_err().contains("PartialData"));
        assert!(answers.sum(1).unwrap_err().contains("Forbidden"));
        assert_eq!(answers.sum(2), Err("no answer".to_owned()));
    }

    #[test]
    fn points_are_as_long_as_cloudwatch_keeps_them() {
        let days = |days: u64| period(Duration::from_secs(days * DAY));
        assert_eq!((period(Duration::from_secs(1)), days(1), days(3)), (60, 1200, 3600));
        assert_eq!((days(14) % 60, days(30) % 300, days(365) % 3600), (0, 0, 0));
        assert_eq!((whole(0.4), whole(-1.0), whole(7.0)), (1, 0, 7));
    }
}
