//! One list of cases for handlers in every language, as far as their kind can express each, and the table of it in
//! `book/src/languages/README.md`. The guests are in the folders beside; the attribute `do` tells them what to do.

mod batches;

use std::fs;

use serde_json::{Value, json};

use crate::invoke::{answer, reply};
use crate::support::echo::Echo;
use crate::support::guests::component;
use crate::support::hostler::{World, announce};
use crate::support::toolchains::{Guest, built, here, run, with_toolchains};

/// The most that SQS takes in one message, in bytes.
const LARGEST: usize = 1024 * 1024;

const TABLE: [&str; 2] =
    ["<!-- conformance: written by UPDATE_GOLDEN=1 cargo test --test all languages -->\n", "<!-- end -->"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `hostler:consumer/handler`.
    Component,
    /// A preview-1 module with `_start`.
    Command,
}

#[derive(Clone, Copy)]
struct Language {
    name: &'static str,
    /// Of its guest, in `tests/languages`.
    folder: &'static str,
    kind: Kind,
    /// Further sources of its guest, besides its own folder.
    needs: &'static [&'static str],
}

const RUST: Language = Language { name: "Rust", folder: "rust", kind: Kind::Component, needs: &["sdk/rust", "wit"] };
const GO: Language = Language { name: "Go", folder: "go", kind: Kind::Command, needs: &["sdk/go"] };
const C: Language = Language { name: "C", folder: "c", kind: Kind::Command, needs: &["sdk/c"] };
const JS: Language = Language { name: "JavaScript", folder: "js", kind: Kind::Component, needs: &["sdk/js", "wit"] };
const PYTHON: Language =
    Language { name: "Python", folder: "python", kind: Kind::Component, needs: &["sdk/python", "wit"] };

/// In the order of the table.
const LANGUAGES: [Language; 5] = [RUST, PYTHON, JS, GO, C];

/// A language's promise for a case.
enum Promise {
    Yes,
    /// Kept, and there is something to know about it.
    Noted(&'static str),
    /// Its kind of handler cannot say this, and why.
    Cannot(&'static str),
}
use Promise::{Cannot, Noted, Yes};

struct Case {
    name: &'static str,
    promise: fn(Language) -> Promise,
    check: fn(&Subject),
}

const CASES: [Case; 17] = [
    Case { name: "ack", promise: |_| Yes, check: acks },
    Case { name: "reply", promise: |_| Yes, check: replies },
    Case { name: "retry", promise: |_| Yes, check: retries },
    Case {
        name: "delay",
        promise: |language| match language.kind {
            Kind::Component => Yes,
            Kind::Command => {
                Cannot("An exit code carries no number of seconds. 75 waits as the consumer's retry policy says.")
            }
        },
        check: delays,
    },
    Case { name: "dead-letter, with a reason", promise: |_| Yes, check: dead_letters },
    Case { name: "error, with its text", promise: |_| Yes, check: errs },
    Case {
        name: "trap",
        promise: |language| match language.folder {
            "go" => Noted(
                "A panic is not a trap in Go but an exit code, and thus a failed attempt; both go to the retry policy.",
            ),
            _ => Yes,
        },
        check: traps,
    },
    Case { name: "stopped at the processing timeout", promise: |_| Yes, check: loops },
    Case { name: "binary body", promise: |_| Yes, check: keeps_every_byte },
    Case { name: "body of 1 MiB, there and back", promise: |_| Yes, check: carries_the_largest_body },
    Case { name: "Unicode attributes", promise: |_| Yes, check: reads_attributes },
    Case { name: "attempt", promise: |_| Yes, check: knows_the_attempt },
    Case {
        name: "time left, should-stop",
        promise: |language| match language.kind {
            Kind::Component => Yes,
            Kind::Command => Cannot("A command cannot call the host: it knows only its environment at the start."),
        },
        check: knows_its_time,
    },
    Case {
        name: "TCP connection to a granted server",
        promise: |language| match language.folder {
            "rust" | "python" => Yes,
            "js" => Cannot("Its runtime has no sockets yet."),
            _ => Cannot("A module of WASI preview 1 has no sockets that connect."),
        },
        check: connects,
    },
    Case {
        name: "act on its job: add items, seal, progress",
        promise: |language| match language.kind {
            Kind::Component => Yes,
            Kind::Command => Cannot("A command cannot call the host: it knows only its environment at the start."),
        },
        check: asks_for_its_job,
    },
    Case {
        name: "batch: an answer for each message",
        promise: |language| match language.kind {
            Kind::Component => Yes,
            Kind::Command => Noted("In lines of JSON. It cannot ask for lost leases."),
        },
        check: |subject| batches::answers_for_each(subject.language),
    },
    Case {
        name: "hook order: start, handle, end",
        promise: |language| match language.kind {
            Kind::Component => Yes,
            Kind::Command => Noted("With the hooks in a separate component, named by the consumer's `hooks`."),
        },
        check: calls_hooks_in_order,
    },
];

/// A guest, and a config with three consumers of it: one with hooks, and one that may connect to a server.
struct Subject {
    language: Language,
    world: World,
    server: Echo,
}

impl Subject {
    fn new(language: Language) -> Self {
        let Guest { wasm, cache } = built(&format!("tests/languages/{}", language.folder), language.needs);
        let (of_kind, hooks) = match language.kind {
            Kind::Component => ("", String::new()),
            Kind::Command => ("reply = 'stdout'", format!("hooks = '{}'", component("hook-tells").display())),
        };
        let consumer =
            format!("handler = '{}'\nprocessing_timeout = '1s'\nlimits.output = '2MiB'\n{of_kind}\n", wasm.display());
        let server = Echo::start();
        let world = World::new(&format!(
            "host.cache_dir = '{}'\n[consumers.one]\nchannel = 'one'\n{consumer}\
             [consumers.hooked]\nchannel = 'hooked'\n{consumer}{hooks}\n\
             [consumers.connected]\nchannel = 'connected'\n{consumer}allow.tcp = ['{}']",
            cache.display(),
            server.address
        ));
        Self { language, world, server }
    }

    fn does(&self, what: &str, body: impl AsRef<[u8]>) -> Value {
        self.does_with("one", what, body, &[])
    }

    fn does_with(&self, consumer: &str, what: &str, body: impl AsRef<[u8]>, more: &[&str]) -> Value {
        fs::write(self.world.path("body"), body).unwrap();
        let what = format!("do={what}");
        let usual = ["--config", "hostler.toml", "--file", "body", "--attr", &what];
        answer(&self.world, consumer, &[&usual, more].concat())
    }
}

fn acks(subject: &Subject) {
    let answer = subject.does("ack", "");
    match subject.language.kind {
        Kind::Component => assert_eq!(answer["outcome"], "ack"),
        // It replies with what it writes, which is nothing.
        Kind::Command => assert_eq!((&answer["outcome"], reply(&answer)), (&json!("reply"), Vec::new())),
    }
}

fn replies(subject: &Subject) {
    let answer = subject.does("reply", "hello\n");
    assert_eq!((&answer["outcome"], reply(&answer)), (&json!("reply"), b"hello\n".to_vec()));
}

fn retries(subject: &Subject) {
    assert_eq!(subject.does("retry", "")["outcome"], "retry");
}

fn delays(subject: &Subject) {
    let answer = subject.does("delay", "90");
    assert_eq!((&answer["outcome"], &answer["delay_seconds"]), (&json!("delay"), &json!(90)));
}

fn dead_letters(subject: &Subject) {
    let answer = subject.does("dead-letter", "Zeile 3: 100 % ohne Straße 🚲");
    assert_eq!(answer["outcome"], "dead-letter");
    assert_eq!(answer["reason"], "Zeile 3: 100 % ohne Straße 🚲");
}

fn errs(subject: &Subject) {
    let answer = subject.does("error", "the disk is full");
    assert_eq!(answer["outcome"], "failed");
    let reason = answer["reason"].as_str().unwrap();
    // What comes before it is the language's: an exit code, the name of an exception.
    assert!(reason.ends_with("the disk is full"), "{reason}");
}

fn traps(subject: &Subject) {
    assert_eq!(subject.does("trap", "")["outcome"], "trapped");
}

fn loops(subject: &Subject) {
    let answer = subject.does("loop", "");
    assert_eq!(answer["outcome"], "timed-out");
    assert!(answer["duration_ms"].as_f64().unwrap() >= 1000.0, "{answer}");
}

fn keeps_every_byte(subject: &Subject) {
    let body: Vec<u8> = (0..=255).collect();
    assert_eq!(reply(&subject.does("reply", &body)), body);
}

fn carries_the_largest_body(subject: &Subject) {
    // 251 is prime, so that no block of it equals the one before.
    let body: Vec<u8> = (0..LARGEST).map(|at| (at % 251) as u8).collect();
    assert_eq!(reply(&subject.does("length", &body)), LARGEST.to_string().into_bytes());
    assert!(reply(&subject.does("reply", &body)) == body, "what came back is not what was sent");
}

fn reads_attributes(subject: &Subject) {
    let attributes =
        [("city", "Zürich 東京 🚲"), ("quoted", "a \"b\" \\ /\u{7f}"), ("empty", ""), ("lines", "one\n\ttwo")];
    let more: Vec<String> =
        attributes.iter().flat_map(|(name, value)| ["--attr".to_owned(), format!("{name}={value}")]).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let told: Value = serde_json::from_slice(&reply(&subject.does_with("one", "attributes", "", &more))).unwrap();
    let mut expected: serde_json::Map<_, _> =
        attributes.iter().map(|&(name, value)| (name.to_owned(), json!(value))).collect();
    expected.insert("do".into(), json!("attributes"));
    assert_eq!(told, Value::Object(expected));
}

fn context(subject: &Subject) -> Value {
    let answer = subject.does_with("one", "context", "", &["--attempt", "3"]);
    serde_json::from_slice(&reply(&answer)).unwrap()
}

fn knows_the_attempt(subject: &Subject) {
    assert_eq!(context(subject)["attempt"], 3);
}

fn knows_its_time(subject: &Subject) {
    let context = context(subject);
    assert_eq!([&context["remaining"], &context["stop"]], [&json!(true), &json!(false)], "{context}");
}

fn connects(subject: &Subject) {
    let server = subject.server.address.to_string();
    assert_eq!(reply(&subject.does_with("connected", "connect", &server, &[])), b"hello");
    assert_eq!(subject.does("connect", &server)["outcome"], "failed", "without a grant");
}

/// `invoke` has no job, so the guest learns so. Requests that are accepted are in `jobs`.
fn asks_for_its_job(subject: &Subject) {
    assert_eq!(reply(&subject.does("job", "")), b"no-job");
}

fn calls_hooks_in_order(subject: &Subject) {
    let answer = subject.does_with("hooked", "hooks", "", &[]);
    let outcome = answer["outcome"].as_str().unwrap();
    assert_eq!(answer["stderr"], format!("start\nhandle\nend {outcome}\n"));
}

/// Every promise of a language is kept.
fn keeps_its_promises(language: Language) {
    let subject = Subject::new(language);
    let said = subject.world.output(&["invoke", "one", "--body", "", "--attr", "do=ack", "--config", "hostler.toml"]);
    let kind = match language.kind {
        Kind::Component => "handler   component (hostler:consumer/handler)",
        Kind::Command => "handler   WASI preview-1 command (_start)",
    };
    assert!(said.stdout.contains(kind), "{said:?}");
    let said = subject.world.output(&["check"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(!said.stderr.contains("composed of several components"), "{said:?}");
    for case in &CASES {
        // Shown if it fails.
        println!("{}: {}", language.name, case.name);
        match (case.promise)(language) {
            Yes | Noted(_) => (case.check)(&subject),
            Cannot(why) => println!("  not in this kind: {why}"),
        }
    }
}

#[test]
fn rust_keeps_its_promises() {
    keeps_its_promises(RUST);
}

#[test]
fn go_keeps_its_promises() {
    keeps_its_promises(GO);
}

#[test]
fn c_keeps_its_promises() {
    keeps_its_promises(C);
}

#[test]
fn javascript_keeps_its_promises() {
    keeps_its_promises(JS);
}

#[test]
fn python_keeps_its_promises() {
    keeps_its_promises(PYTHON);
}

#[test]
fn helpers_of_commands_pass_their_own_tests() {
    for (folder, program, args) in [("sdk/go", "go", &["test", "./..."][..]), ("sdk/c", "make", &[])] {
        let mut command = with_toolchains(program);
        command.args(args).current_dir(here(folder));
        run(&format!("{program} in {folder}"), command);
    }
}

/// The table, and below it what its marks mean.
fn table() -> String {
    let mut notes: Vec<&str> = Vec::new();
    let mut mark = |note| {
        let at = notes.iter().position(|known| *known == note).unwrap_or_else(|| {
            notes.push(note);
            notes.len() - 1
        });
        ['¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][at]
    };
    let mut lines = vec![
        format!("| | {} |", LANGUAGES.map(|language| language.name).join(" | ")),
        format!("|---{}|", "|---".repeat(LANGUAGES.len())),
    ];
    for case in &CASES {
        let cells = LANGUAGES.map(|language| match (case.promise)(language) {
            Yes => "yes".to_owned(),
            Noted(note) => format!("yes{}", mark(note)),
            Cannot(why) => format!("–{}", mark(why)),
        });
        lines.push(format!("| {} | {} |", case.name, cells.join(" | ")));
    }
    let marks = ['¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    // Two spaces at its end keep a line from running into the next.
    let notes: Vec<String> = notes.iter().zip(marks).map(|(note, mark)| format!("{mark} {note}")).collect();
    format!("{}\n\n{}\n", lines.join("\n"), notes.join("  \n"))
}

/// The tests above check that the promises are kept.
#[test]
fn the_table_in_the_docs_is_what_is_promised() {
    let (path, table) = (here("book/src/languages/README.md"), table());
    announce(&table);
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(TABLE[0]).unwrap();
    let (shown, after) = rest.split_once(TABLE[1]).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, [before, TABLE[0], &table, TABLE[1], after].concat()).unwrap();
        return;
    }
    assert_eq!(shown, table, "the table in {} is not this; UPDATE_GOLDEN=1 writes it", path.display());
}
