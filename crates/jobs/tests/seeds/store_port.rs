//! The real store, called in the language of the clients.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use hostler_jobs::json::RawJson;
use hostler_jobs::store::{Delivery, IdempotencyKey, Settlement, Store, StoreError};
use hostler_jobs::types;
use hostler_postgres::DatabaseError;
use hostler_types::Timestamp;
use serde_json::Value;

use crate::call::{Answer, Assigned, ItemView, NewItem, Node, Operation, Refusal, Settled, State, Status, Time};
use crate::site::Port;

/// Texts of ids and their numbers.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, usize>,
    texts: Vec<String>,
}

/// Several instances of the store over the same database.
pub struct StorePort {
    pub stores: Vec<Store>,
    /// Separates the types and keys of runs in the same database.
    prefix: String,
    names: Mutex<Names>,
    turn: Mutex<usize>,
    zero: Mutex<Timestamp>,
    lease: Duration,
}

impl StorePort {
    /// Makes a port. Its time starts now.
    pub fn new(stores: Vec<Store>, prefix: String, lease: Duration) -> Self {
        let (names, turn, zero) = (Mutex::default(), Mutex::default(), Mutex::new(Timestamp::now()));
        Self { stores, prefix, names, turn, zero, lease }
    }

    /// Returns milliseconds since the start of the run.
    pub fn now(&self) -> Time {
        self.time(Timestamp::now())
    }

    /// Moves the start of the run into the past.
    pub fn shift(&self, by: Duration) {
        let mut zero = self.zero.lock().unwrap();
        *zero = zero.minus(by);
    }

    /// Converts a time of the server.
    fn time(&self, at: Timestamp) -> Time {
        let zero = *self.zero.lock().unwrap();
        let (after, before) = (at.since(zero).as_millis(), zero.since(at).as_millis());
        Time::try_from(after).unwrap() - Time::try_from(before).unwrap()
    }

    fn parse_time(&self, text: &str) -> Time {
        self.time(serde_json::from_value(Value::String(text.to_owned())).unwrap())
    }

    /// Returns the number of an id.
    pub fn number(&self, text: &str) -> usize {
        let mut names = self.names.lock().unwrap();
        if let Some(number) = names.numbers.get(text) {
            return *number;
        }
        let number = names.texts.len();
        names.texts.push(text.to_owned());
        names.numbers.insert(text.to_owned(), number);
        number
    }

    /// Returns an id.
    pub fn text(&self, number: usize) -> String {
        self.names.lock().unwrap().texts[number].clone()
    }

    fn texts(&self, numbers: &[usize]) -> Vec<String> {
        numbers.iter().map(|number| self.text(*number)).collect()
    }

    fn numbers<'a>(&self, texts: impl IntoIterator<Item = &'a String>) -> Vec<usize> {
        texts.into_iter().map(|text| self.number(text)).collect()
    }

    fn kind(&self, kind: usize) -> String {
        format!("{}-{kind}", self.prefix)
    }

    fn token(&self, token: usize) -> Option<IdempotencyKey> {
        Some(IdempotencyKey { key: format!("{}-{token}", self.prefix), hash: token.to_string() })
    }

    fn node(&self, node: &Node) -> types::NewJob {
        types::NewJob {
            kind: self.kind(node.kind),
            id: None,
            dedupe_key: node.dedupe_key.map(|key| key.to_string()),
            max_failures_per_item: node.max_failures.try_into().unwrap(),
            final_stage: node.final_stage,
            sealed: node.sealed,
            metadata: RawJson::object(),
            callback: node.callback.then(|| types::Callback::Url("http://127.0.0.1:9/seeds".to_owned())),
            feed: node.feed.as_ref().map(|feed| types::Feed::Payload(RawJson::of(feed).unwrap())),
            items: self.items(&node.items),
            children: node.children.iter().map(|child| self.node(child)).collect(),
        }
    }

    fn items(&self, items: &[NewItem]) -> Vec<types::NewItem> {
        let convert = |item: &NewItem| types::NewItem {
            payload: RawJson::of(&item.payload).unwrap(),
            id: None,
            dedupe_key: item.dedupe_key.map(|key| key.to_string()),
            serialize_key: item.serialize_key.map(|key| format!("{}-{key}", self.prefix)),
            priority: item.priority,
            metadata: RawJson::object(),
        };
        items.iter().map(convert).collect()
    }

    fn assigned(&self, one: &types::Assigned) -> Assigned {
        Assigned {
            assignment: self.number(&one.assignment_id),
            item: self.number(&one.item.id),
            job: self.number(&one.item.job_id),
            payload: serde_json::from_str(one.item.payload.text()).unwrap(),
        }
    }

    fn status(&self, status: &types::Status) -> Status {
        let count = |number: u64| number.try_into().unwrap();
        Status {
            job: self.number(&status.id),
            sealed: status.sealed,
            complete: status.complete,
            final_stage: status.final_stage,
            added: count(status.added),
            succeeded: count(status.succeeded),
            failed: count(status.failed),
            pending: count(status.pending),
            assigned: count(status.assigned),
            tree_complete: status.tree_complete,
            children: status.children.iter().map(|child| self.status(child)).collect(),
        }
    }

    /// Converts an item as it is listed. The second value is its `retry_at`.
    pub fn view(&self, row: &types::ItemRow) -> (ItemView, Option<Time>) {
        let key = |text: &Option<String>| text.as_ref().and_then(|text| text.rsplit('-').next()?.parse().ok());
        let view = ItemView {
            item: self.number(&row.id),
            job: self.number(&row.job_id),
            payload: serde_json::from_str(row.payload.text()).unwrap(),
            state: match row.state {
                types::ItemState::Pending => State::Pending,
                types::ItemState::Assigned => State::Assigned,
                types::ItemState::Succeeded => State::Succeeded,
                types::ItemState::Failed => State::Failed,
            },
            result: serde_json::from_str(row.result.text()).unwrap(),
            failures: row.failures.len(),
            dedupe_key: key(&row.dedupe_key),
            serialize_key: key(&row.serialize_key),
        };
        (view, row.retry_at.as_deref().map(|at| self.parse_time(at)))
    }

    /// Returns all items that match a query.
    pub async fn list(&self, mut query: types::ItemQuery) -> Result<Vec<types::ItemRow>, StoreError> {
        let mut rows = Vec::new();
        query.limit = Some(50);
        loop {
            let page = self.store().items(&query).await?;
            rows.extend(page.items);
            if page.next.is_none() {
                return Ok(rows);
            }
            query.cursor = page.next;
        }
    }

    /// Returns one of the stores, in turn.
    pub fn store(&self) -> &Store {
        let mut turn = self.turn.lock().unwrap();
        *turn += 1;
        &self.stores[*turn % self.stores.len()]
    }

    fn settled(&self, settlement: Settlement, is_success: bool) -> Answer {
        let settled = match settlement {
            Settlement::Ok { .. } if is_success => Settled::Success,
            Settlement::Ok { retry_at } => Settled::Failure { retry_at: retry_at.map(|at| self.parse_time(&at)) },
            Settlement::Stale => Settled::Stale,
        };
        Answer::Settled(vec![settled])
    }

    async fn settle(&self, successes: &[(usize, Value)], failures: &[usize]) -> Result<Answer, StoreError> {
        let success = |(assignment, result): &(usize, Value)| types::Success {
            assignment_id: self.text(*assignment),
            result: RawJson::of(result).unwrap(),
            ..types::Success::default()
        };
        let failure = |assignment: &usize| types::Failure {
            assignment_id: self.text(*assignment),
            error: RawJson::of(&"failed").unwrap(),
            ..types::Failure::default()
        };
        let (successes, failures) = (successes.iter().map(success).collect(), failures.iter().map(failure).collect());
        let settled = self.store().settle(successes, failures).await?;
        let is_ok = |one: &types::Settled| one.status == types::SettledStatus::Ok;
        Ok(Answer::Settled(settled.iter().map(|one| if is_ok(one) { Settled::Ok } else { Settled::Stale }).collect()))
    }

    async fn create(&self, node: &Node, token: usize) -> Result<Answer, StoreError> {
        let created = self.store().create(self.node(node), self.token(token)).await?;
        let jobs = self.numbers(created.jobs.iter().map(|job| &job.id));
        Ok(Answer::Created { jobs, items: self.numbers(&created.item_ids) })
    }

    async fn sweep(&self) -> Result<Answer, StoreError> {
        let store = self.store();
        store.expire().await?;
        store.promote().await?;
        store.fold().await?;
        Ok(Answer::Done)
    }

    async fn claim_callbacks(&self) -> Result<Answer, StoreError> {
        let due = self.store().claim_callbacks(100, self.lease).await?;
        Ok(Answer::Callbacks(due.iter().map(|due| (self.number(&due.id), self.number(&due.root_id))).collect()))
    }

    /// Carries out a call.
    pub async fn perform(&self, operation: &Operation) -> Result<Answer, StoreError> {
        let store = self.store();
        match operation {
            Operation::Create { node, token } => self.create(node, *token).await,
            Operation::Add { job, items, token } => {
                let ids = store.add_items(&self.text(*job), self.items(items), self.token(*token)).await?;
                Ok(Answer::Added(self.numbers(&ids)))
            }
            Operation::Seal { job } => store.seal(&self.text(*job)).await.map(|()| Answer::Done),
            Operation::Delete { job } => store.delete(&self.text(*job)).await.map(|()| Answer::Done),
            Operation::Claim { worker, kinds, max } => {
                let kinds: Vec<String> = kinds.iter().map(|kind| self.kind(*kind)).collect();
                let assigned = store.claim(&kinds, &worker.to_string(), *max).await?;
                Ok(Answer::Assigned(assigned.iter().map(|one| self.assigned(one)).collect()))
            }
            Operation::Assign { worker, item } => {
                let assigned = store.assign(&self.text(*item), &worker.to_string()).await?;
                Ok(Answer::Assigned(vec![self.assigned(&assigned)]))
            }
            Operation::Succeed { assignment, result } => {
                let settled = store.succeed(&self.text(*assignment), RawJson::of(result).unwrap()).await?;
                Ok(self.settled(settled, true))
            }
            Operation::Fail { assignment, retry_in, .. } => {
                let retry_in = retry_in.map(|delay| Duration::from_millis(delay.try_into().unwrap()));
                let settled = store.fail(&self.text(*assignment), RawJson::of(&"failed").unwrap(), retry_in).await?;
                Ok(self.settled(settled, false))
            }
            Operation::Settle { successes, failures } => self.settle(successes, failures).await,
            Operation::Heartbeat { assignments, .. } => {
                Ok(Answer::Stale(self.numbers(&store.heartbeat(&self.texts(assignments)).await?)))
            }
            Operation::Release { assignments } => {
                Ok(Answer::Stale(self.numbers(&store.release(&self.texts(assignments)).await?)))
            }
            Operation::Status { job } => Ok(Answer::Status(self.status(&store.status(&self.text(*job)).await?))),
            Operation::Callbacks => self.claim_callbacks().await,
            Operation::Delivered { event } => {
                store.settle_callback(&self.text(*event), Delivery::Delivered).await.map(|()| Answer::Done)
            }
            Operation::Sweep => self.sweep().await,
        }
    }

    /// Converts an error. `None`: the database did not answer. Panics at an error that no call may have.
    pub fn refusal(&self, operation: &Operation, error: &StoreError) -> Option<Answer> {
        let refusal = match error {
            StoreError::NotFound { .. } | StoreError::Gone => Refusal::Missing,
            StoreError::Conflict { reason: "dedupe_key", job_id: Some(job) } => Refusal::Duplicate(self.number(job)),
            StoreError::Conflict { reason: "sealed", .. } => Refusal::Sealed,
            StoreError::Conflict { reason: "deleted", .. } => Refusal::Missing,
            StoreError::Conflict { reason: "assigned", .. } => Refusal::Assigned,
            StoreError::Conflict { reason: "done", .. } => Refusal::Done,
            StoreError::Conflict { reason: "retry_at", .. } => Refusal::RetryAt,
            StoreError::Conflict { reason: "serialize_key", .. } => Refusal::SerializeKey,
            StoreError::Database(DatabaseError::Refused { .. } | DatabaseError::Denied { .. }) => {
                panic!("{operation:?}: {error}")
            }
            StoreError::Database(_) => return None,
            _ => panic!("{operation:?}: {error}"),
        };
        Some(Answer::Refused(refusal))
    }
}

impl Port for StorePort {
    async fn carry_out(&self, operation: &Operation) -> Option<Answer> {
        match self.perform(operation).await {
            Ok(answer) => Some(answer),
            Err(error) => self.refusal(operation, &error),
        }
    }
}
