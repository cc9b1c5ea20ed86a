//! Secrets in `allow.env`: looked up at the start, renewed under a running host, and shown nowhere.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::hostler::{Host, PATIENCE, World, until};

/// Values of the secret. No time, number or id has these letters.
const FIRST: &str = "first-zqxwvk";
const SECOND: &str = "second-zqxwvk";
const MARK: &str = "zqxwvk";

/// A world with a consumer whose handler replies with its environment.
fn world(env: &str) -> World {
    let world = World::new(&consumer(env));
    fs::create_dir(world.path("secrets")).unwrap();
    world.queue("answers");
    world
}

fn consumer(env: &str) -> String {
    format!(
        "[consumers.work]\nchannel = 'work'\nhandler = 'guests/main-prints-environment.wat'\nreply = 'stdout'\n\
         reply_channel = 'answers'\nallow.env = {{ {env} }}"
    )
}

/// Returns the variable for a file in the world's folder of secrets.
fn in_file(world: &World, name: &str) -> String {
    format!("{{ secret = 'file:{}' }}", world.path("secrets").join(name).display())
}

/// Replaces a file as programs do that rotate secrets.
fn rotate(world: &World, name: &str, content: &str) {
    let new = world.path("secrets").join("new");
    fs::write(&new, content).unwrap();
    fs::rename(new, world.path("secrets").join(name)).unwrap();
}

/// Processes one more message. Returns the value of `TOKEN` in its environment.
fn token(world: &World, host: &Host, settled: usize) -> String {
    world.send("work", ["go"]);
    host.settled(settled);
    let said = world.output(&["receive", "answers", "--json", "--ack"]);
    assert_eq!(said.code, 0, "{said:?}");
    let message: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
    let message = message.as_array().map_or(&message, |messages| &messages[0]);
    let body = message["body"].as_str().unwrap();
    body.lines().find_map(|line| line.strip_prefix("TOKEN=")).expect(body).to_owned()
}

/// Makes the host look its secrets up again, and waits for a line that begins with this text.
fn reload(host: &Host, expected: &str) -> Value {
    host.signal(Signal::HUP);
    host.wait_for(PATIENCE, |line| line["message"].as_str().is_some_and(|text| text.starts_with(expected)))
}

#[test]
fn a_rotated_file_reaches_new_sandboxes_and_no_log() {
    let world = world("");
    world.config(&consumer(&format!("TOKEN = {}", in_file(&world, "token"))));
    rotate(&world, "token", &format!("{FIRST}\n"));
    let mut command = world.command(&["run"]);
    command.env("RUST_LOG", "trace");
    let mut host = Host::start(command);
    assert_eq!(token(&world, &host, 1), FIRST);

    rotate(&world, "token", SECOND);
    let line = reload(&host, "secret changed");
    assert_eq!(
        (&line["consumer"], &line["variable"], &line["level"]),
        (&"work".into(), &"TOKEN".into(), &"INFO".into())
    );
    assert_eq!(token(&world, &host, 2), SECOND);

    // An empty file is what a reader sees while another program writes it anew.
    rotate(&world, "token", "");
    let line = reload(&host, "secret cannot be looked up");
    assert_eq!(line["level"], "WARN");
    assert!(line["cure"].as_str().unwrap().contains("rename"), "{line}");
    assert_eq!(token(&world, &host, 3), SECOND);

    rotate(&world, "token", FIRST);
    reload(&host, "secret can be looked up again");
    until("it is given", PATIENCE, || {
        host.lines()
            .iter()
            .filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with("secret changed")))
            .nth(1)
            .map(drop)
    });
    assert_eq!(token(&world, &host, 4), FIRST);

    let health = fs::read_to_string(world.path("health.json")).unwrap();
    assert_eq!(host.stop(), 0);
    let leaked: Vec<_> = host.lines().into_iter().filter(|line| line.to_string().contains(MARK)).collect();
    assert!(leaked.is_empty() && !health.contains(MARK), "{leaked:?} {health}");
}

/// Kubernetes mounts a secret as links to a folder, and swaps the link to the folder.
#[test]
fn a_swapped_link_is_followed() {
    let world = world("");
    world.config(&consumer(&format!("TOKEN = {}", in_file(&world, "token"))));
    let folder = world.path("secrets");
    for (version, value) in [("..v1", FIRST), ("..v2", SECOND)] {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("token"), value).unwrap();
    }
    symlink("..v1", folder.join("..data")).unwrap();
    symlink("..data/token", folder.join("token")).unwrap();
    let mut host = world.start();
    assert_eq!(token(&world, &host, 1), FIRST);
    symlink("..v2", folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    fs::remove_dir_all(folder.join("..v1")).unwrap();
    reload(&host, "secret changed");
    assert_eq!(token(&world, &host, 2), SECOND);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_secret_that_cannot_be_had_ends_the_start() {
    let world = world("");
    world.config(&consumer(&format!("TOKEN = {}", in_file(&world, "none"))));
    for (args, more) in [(&["run"][..], ""), (&["check"], ""), (&["invoke", "work", "--body", ""], "")] {
        let said = world.output(args);
        assert_eq!(said.code, 64, "{said:?}{more}");
        for part in ["consumers.work.allow.env.TOKEN", "secrets/none", "No such file", "cure: mount the secret there"] {
            assert!(said.stderr.contains(part), "{part} in {said:?}");
        }
    }
}

#[test]
fn check_and_invoke_look_secrets_up() {
    let world = world("");
    world.config(&consumer(&format!("TOKEN = {}", in_file(&world, "token"))));
    rotate(&world, "token", FIRST);
    let said = world.output(&["check"]);
    assert!(said.stdout.contains("secret    ok  work: TOKEN from file:") && !said.stdout.contains(MARK), "{said:?}");
    let said = world.output(&["invoke", "work", "--body", "", "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
}

#[cfg(feature = "sqs")]
mod managed {
    use serde_json::json;

    use super::{FIRST, MARK, SECOND, consumer, reload, token};
    use crate::support::hostler::{Host, World};
    use crate::support::scripted::{Answer, Scripted};
    use std::sync::{Arc, Mutex};

    const ARN: &str = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbC123";
    const OTHER: &str = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:api-XyZ789";

    /// A Secrets Manager with two secrets. `None`: it denies access.
    fn manager(text: &Arc<Mutex<Option<String>>>) -> Scripted {
        let text = Arc::clone(text);
        Scripted::start(move |action, _| {
            let Some(text) = text.lock().unwrap().clone() else { return Answer::Error(400, "AccessDeniedException") };
            match action {
                "BatchGetSecretValue" => Answer::Ok(json!({
                    "SecretValues": [
                        { "ARN": ARN, "Name": "db", "SecretString": text },
                        { "ARN": OTHER, "Name": "api", "SecretString": "other-zqxwvk" },
                    ],
                    "Errors": [],
                })),
                "GetSecretValue" => Answer::Ok(json!({ "ARN": ARN, "Name": "db", "SecretString": text })),
                other => panic!("{other}"),
            }
        })
    }

    fn world(manager: &Scripted) -> World {
        let env = format!(
            "TOKEN = {{ secret = '{ARN}:token::' }}, PORT = {{ secret = '{ARN}:port::' }}, \
             OLD = {{ secret = '{ARN}:token:AWSPREVIOUS:' }}, OTHER = {{ secret = '{OTHER}' }}"
        );
        let mut world = World::new(&consumer(&env));
        world.set("AWS_ACCESS_KEY_ID", "test".into());
        world.set("AWS_SECRET_ACCESS_KEY", "test".into());
        world.set("AWS_ENDPOINT_URL_SECRETS_MANAGER", manager.endpoint());
        world.queue("answers");
        world
    }

    fn secret(token: &str) -> Option<String> {
        Some(json!({ "token": token, "port": 5432 }).to_string())
    }

    #[test]
    fn secrets_are_asked_for_in_one_batch_and_renewed() {
        let text = Arc::new(Mutex::new(secret(FIRST)));
        let manager = manager(&text);
        let world = world(&manager);
        let mut host: Host = world.start();
        assert_eq!(token(&world, &host, 1), FIRST);
        let batches = manager.calls("BatchGetSecretValue");
        assert_eq!(batches, [json!({ "SecretIdList": [OTHER, ARN] })]);
        let singles = manager.calls("GetSecretValue");
        assert_eq!(singles, [json!({ "SecretId": ARN, "VersionStage": "AWSPREVIOUS" })]);

        *text.lock().unwrap() = secret(SECOND);
        reload(&host, "secret changed");
        assert_eq!(token(&world, &host, 2), SECOND);

        *text.lock().unwrap() = None;
        let line = reload(&host, "secret cannot be looked up");
        assert!(line["cure"].as_str().unwrap().contains("hostler iam"), "{line}");
        assert_eq!(token(&world, &host, 3), SECOND);
        assert_eq!(host.stop(), 0);
        assert!(!host.lines().iter().any(|line| line.to_string().contains(MARK)));
    }

    #[test]
    fn a_denied_secret_ends_the_start() {
        let manager = manager(&Arc::default());
        let said = world(&manager).output(&["run"]);
        assert_eq!(said.code, 64, "{said:?}");
        assert!(said.stderr.contains("AccessDeniedException") && said.stderr.contains(ARN), "{said:?}");
    }
}
