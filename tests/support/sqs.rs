//! A world with its queues on a third-party server, under a prefix of its own.

use std::ops::{Deref, DerefMut};

use serde_json::Value;

use super::hostler::World;
use super::python::python;
use super::servers::{Kind, Server, unique};

/// A world of hostler, with the server that has its queues.
pub struct Aws {
    world: World,
    /// Server with the queues.
    pub server: &'static Server,
    /// Prefix of the names of all queues and topics in this world.
    pub prefix: String,
}

impl Deref for Aws {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Aws {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Aws {
    /// Creates a world on the shared server of this kind. hostler creates missing queues there.
    pub fn new(kind: Kind, config: &str) -> Self {
        Self::through(&Server::shared(kind).endpoint(), kind, config)
    }

    /// Creates a world in which hostler calls this address instead of the server's.
    pub fn through(endpoint: &str, kind: Kind, config: &str) -> Self {
        let (server, prefix) = (Server::shared(kind), format!("{}-", unique("i")));
        let head = format!(
            "
            host.health_file = 'health.json'
            queue.driver = 'sqs'
            queue.sqs.endpoint_url = '{endpoint}'
            queue.sqs.region = 'eu-west-1'
            queue.sqs.prefix = '{prefix}'
            "
        );
        let mut env = server.env();
        env.push(("HOSTLER_QUEUE__SQS__PROVISION", "auto".to_owned()));
        Self { world: World::with(&head, env, config), server, prefix }
    }

    /// Runs a script with the clients of `prelude.py` and the variable `prefix`. `args` are its `sys.argv[1:]`. Returns its
    /// output, parsed as JSON. Null: no output.
    pub fn python(&self, script: &str, args: &[&str]) -> Value {
        let script = format!("prefix = {:?}\n{script}", self.prefix);
        let printed = python(self.server, &script, args);
        if printed.is_empty() { Value::Null } else { serde_json::from_str(&printed).expect(&printed) }
    }

    /// Returns the numbers of visible, delayed and in-flight messages of a queue, as boto3 reports them.
    pub fn counts(&self, name: &str) -> [u64; 3] {
        let counts = self.python("print(json.dumps(depth(url(prefix + sys.argv[1]))))", &[name]);
        serde_json::from_value(counts).unwrap()
    }
}
