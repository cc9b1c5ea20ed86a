//! The drivers that the suite is asked of.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::fake::{self, FakeBroker};
use hostler_queue::{DEDUPE_WINDOW, Provisioner};
use hostler_queue_embedded::{self as embedded, EmbeddedBroker, Options};
use hostler_queue_nats::{self as nats, NatsBroker};
use hostler_queue_postgres::{self as postgres, PostgresBroker};
use hostler_queue_rabbitmq::{self as rabbitmq, RabbitBroker};
use hostler_queue_sqs::{self as sqs, SqsBroker};
use tempfile::TempDir;

use super::{Counts, Harness, Traits, abilities, ability, cases, suite};
use crate::support::nats::{Nats, Version};
use crate::support::postgres::Postgres;
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::{Kind, Server, unique};

/// One file, opened anew by each client.
pub struct Embedded(TempDir);

impl Harness for Embedded {
    const TICK: Duration = Duration::from_millis(250);
    const DEDUPE_WINDOW: Duration = Duration::from_millis(250);
    const MAX_MESSAGE: usize = embedded::MAX_MESSAGE;

    async fn start() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    async fn broker(&self) -> Arc<dyn Provisioner> {
        let options = Options { dedupe_window: Self::DEDUPE_WINDOW, ..Options::default() };
        Arc::new(EmbeddedBroker::open_with(&self.0.path().join("queue.db"), options).unwrap())
    }
}

/// In memory, on a paused clock.
pub struct Fake(FakeBroker);

impl Harness for Fake {
    const TICK: Duration = Duration::from_secs(1);
    const DEDUPE_WINDOW: Duration = DEDUPE_WINDOW;
    const MAX_MESSAGE: usize = fake::MAX_MESSAGE;

    async fn start() -> Self {
        Self(FakeBroker::default())
    }

    async fn broker(&self) -> Arc<dyn Provisioner> {
        Arc::new(self.0.clone())
    }
}

/// A server that does as SQS, SNS and S3; each harness has names of its own on it.
pub struct Aws<const KIND: usize>(String);

const LOCALSTACK: usize = Kind::LocalStack as usize;
const MINISTACK: usize = Kind::Ministack as usize;

impl<const KIND: usize> Aws<KIND> {
    fn server() -> &'static Server {
        Server::shared(Kind::ALL[KIND])
    }
}

impl<const KIND: usize> Harness for Aws<KIND> {
    const TICK: Duration = Duration::from_secs(2);
    const DEDUPE_WINDOW: Duration = DEDUPE_WINDOW;
    const MAX_MESSAGE: usize = sqs::MAX_MESSAGE;
    const TRAITS: Traits = Traits {
        copies_keep_ids: false,
        counts_copies: false,
        tells_why_it_gave_up: false,
        looks_are_free: false,
        tells_ages: false,
        lists_exchanges: false,
        counts: Counts::DelayedAsLeased,
    };

    async fn start() -> Self {
        tokio::task::spawn_blocking(Self::server).await.unwrap();
        Self(unique("c"))
    }

    async fn broker(&self) -> Arc<dyn Provisioner> {
        let options = sqs::Options {
            region: Some("eu-west-1".to_owned()),
            endpoint_url: Some(Self::server().endpoint()),
            credentials: Some(("test".to_owned(), "test".to_owned())),
            prefix: format!("{}-", self.0),
            create_missing: true,
            ..sqs::Options::default()
        };
        Arc::new(SqsBroker::connect(options).await.unwrap())
    }
}

/// One server that all tests share; each harness has a prefix of its own on it.
pub struct Rabbit(String);

/// The channels of the cases, as RabbitMQ lists no queues to a client.
const CHANNELS: [&str; 4] = ["shop.first", "jobs", "plain", "sent-to"];

impl Harness for Rabbit {
    const TICK: Duration = Duration::from_secs(1);
    const DEDUPE_WINDOW: Duration = DEDUPE_WINDOW;
    const MAX_MESSAGE: usize = rabbitmq::MAX_MESSAGE;
    const TRAITS: Traits = Traits {
        counts_copies: false,
        looks_are_free: false,
        tells_ages: false,
        counts: Counts::Visible,
        ..Traits::ALL
    };

    async fn start() -> Self {
        tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
        Self(unique("c"))
    }

    async fn broker(&self) -> Arc<dyn Provisioner> {
        let options = rabbitmq::Options {
            url: RabbitMq::shared().url(),
            prefix: format!("{}-", self.0),
            ladder_prefix: Some("shared-".to_owned()),
            create_missing: true,
            channels: CHANNELS.map(|name| name.parse().unwrap()).into(),
            ..rabbitmq::Options::default()
        };
        Arc::new(RabbitBroker::connect(options).await.unwrap())
    }
}

/// One server of each version that all tests share; each harness has a prefix of its own on it.
pub struct JetStream<const VERSION: usize>(String);

const OLDEST: usize = Version::Oldest as usize;
const MIDDLE: usize = Version::Middle as usize;
const NEWEST: usize = Version::Newest as usize;

impl<const VERSION: usize> JetStream<VERSION> {
    fn server() -> &'static Nats {
        Nats::shared(Version::ALL[VERSION])
    }
}

impl<const VERSION: usize> Harness for JetStream<VERSION> {
    /// Not the time of a request for messages: NATS 2.9 now and then loses the delivery of a message that comes back just when a
    /// request ends, and delivers it again after the lease.
    const TICK: Duration = Duration::from_millis(1300);
    /// Hosts that share a schedule rely on it: longer than two of them take for one step.
    const DEDUPE_WINDOW: Duration = Duration::from_secs(2);
    /// The server's limit of 1 MiB includes the headers.
    const MAX_MESSAGE: usize = (1 << 20) - nats::OWN_HEADERS;
    const TRAITS: Traits = Traits { counts_copies: false, counts: Counts::Visible, ..Traits::ALL };

    async fn start() -> Self {
        tokio::task::spawn_blocking(Self::server).await.unwrap();
        Self(unique("c"))
    }

    async fn broker(&self) -> Arc<dyn Provisioner> {
        let options = nats::Options {
            url: Self::server().url(),
            prefix: format!("{}-", self.0),
            create_missing: true,
            dedupe_window: Self::DEDUPE_WINDOW,
            ..nats::Options::default()
        };
        Arc::new(NatsBroker::connect(options).await.unwrap())
    }
}

/// A database of its own for each harness, on one server that all tests share.
pub struct Database(String);

impl Harness for Database {
    const TICK: Duration = Duration::from_millis(500);
    const DEDUPE_WINDOW: Duration = Duration::from_millis(250);
    const MAX_MESSAGE: usize = postgres::MAX_MESSAGE;

    async fn start() -> Self {
        Self(tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap())
    }

    async fn broker(&self) -> Arc<dyn Provisioner> {
        let options = postgres::Options {
            url: self.0.clone(),
            create_missing: true,
            dedupe_window: Self::DEDUPE_WINDOW,
            ..postgres::Options::default()
        };
        Arc::new(PostgresBroker::connect(options).await.unwrap())
    }
}

macro_rules! of_our_own {
    ($driver:ident: $harness:ty, $test:meta) => {
        abilities!($driver: $harness, $test; dedupe dedupe_in_order reorder one_of_a_group delay_in_order refilter
            mixed_exchange sender_first peek plain_order records schedules stoppable);
    };
}

suite!(embedded_queue: Embedded, tokio::test);
of_our_own!(embedded_queue_abilities: Embedded, tokio::test);
suite!(fake_queue: Fake, tokio::test(start_paused = true));
of_our_own!(fake_queue_abilities: Fake, tokio::test(start_paused = true));
suite!(postgres_queue: Database, tokio::test);
of_our_own!(postgres_queue_abilities: Database, tokio::test);
suite!(sqs_on_localstack: Aws<LOCALSTACK>, tokio::test);
abilities!(sqs_on_localstack_abilities: Aws<LOCALSTACK>, tokio::test; dedupe_in_order);
suite!(sqs_on_ministack: Aws<MINISTACK>, tokio::test);
abilities!(sqs_on_ministack_abilities: Aws<MINISTACK>, tokio::test; dedupe_in_order);
suite!(rabbitmq_queue: Rabbit, tokio::test);
abilities!(rabbitmq_queue_abilities: Rabbit, tokio::test; one_of_a_group delay_in_order mixed_exchange plain_order
    pushes stoppable);

macro_rules! of_jetstream {
    ($driver:ident: $harness:ty) => {
        abilities!($driver: $harness, tokio::test; dedupe dedupe_in_order reorder one_of_a_group delay_in_order
            mixed_exchange peek plain_order schedules stoppable);
    };
}

suite!(nats_oldest: JetStream<OLDEST>, tokio::test);
of_jetstream!(nats_oldest_abilities: JetStream<OLDEST>);
suite!(nats_middle: JetStream<MIDDLE>, tokio::test);
of_jetstream!(nats_middle_abilities: JetStream<MIDDLE>);
suite!(nats_newest: JetStream<NEWEST>, tokio::test);
of_jetstream!(nats_newest_abilities: JetStream<NEWEST>);
