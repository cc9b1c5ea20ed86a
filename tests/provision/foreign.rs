//! `provision` and `check` beside resources and settings that others have made.

use serde_json::json;

use super::Setup;
use crate::support::python::python;
use crate::support::servers::Kind;

/// Others have made a queue, a dead-letter queue that takes less than it, and a topic.
const FOREIGN: &str = r#"
def queue(name, **attributes):
    return sqs.create_queue(QueueName=sys.argv[1] + name, Attributes=attributes, tags={"team": "x"})["QueueUrl"]
queue("plain-dlq", MaximumMessageSize="262144", MessageRetentionPeriod="1209600")
queue("plain", MaximumMessageSize="1048576")
sns.create_topic(Name=sys.argv[1] + "news", Tags=[{"Key": "team", "Value": "x"}])
"#;

const ON_FOREIGN: &str = "
    [consumers.plain]
    channel = 'news.plain'
    handler = 'guests/main-echoes.wat'
";

#[test]
fn what_others_have_made_is_configured_and_not_claimed() {
    let setup = Setup::new(Kind::Moto, "", ON_FOREIGN);
    python(setup.server, FOREIGN, &[&setup.prefix]);
    let planned = setup.lines(&["provision", "--plan"]);
    let left: Vec<_> = planned.iter().filter(|line| line.starts_with('=')).collect();
    let [dead_letters, queue, topic] = &left[..] else { panic!("{planned:#?}") };
    for (line, title) in [(dead_letters, "queue P-plain-dlq"), (queue, "queue P-plain"), (topic, "topic P-news")] {
        assert!(line.starts_with(&format!("= {title}: not tagged, as it was there before")), "{line}");
    }
    assert!(planned.iter().all(|line| !line.contains("tags:")), "{planned:#?}");
    let made = planned.len() - 1 - left.len();
    assert_eq!(planned.last().unwrap(), &format!("{made} changes; run `hostler provision` to make them"));
    setup.lines(&["provision"]);
    let again = setup.lines(&["provision"]);
    assert_eq!((again.len(), again[3].as_str()), (4, "no change"), "{again:#?}");
    for queue in ["plain", "plain-dlq"] {
        assert_eq!(setup.look(queue)["tags"], json!({"team": "x"}), "{queue}");
    }
    // Whoever owns it may hand it over.
    python(
        setup.server,
        "url = sqs.get_queue_url(QueueName=sys.argv[1] + 'plain')['QueueUrl']\n\
         sqs.tag_queue(QueueUrl=url, Tags={'hostler:managed': 'true'})",
        &[&setup.prefix],
    );
    setup.lines(&["provision"]);
    assert_eq!(setup.look("plain")["tags"]["hostler:consumer"], "plain");
}

#[test]
fn a_dead_letter_queue_that_takes_less_than_its_source_fails_the_check() {
    let setup = Setup::new(Kind::Moto, "", ON_FOREIGN);
    python(setup.server, FOREIGN, &[&setup.prefix]);
    setup.lines(&["provision"]);
    let said = setup.hostler(&["check"]);
    assert_eq!(said.code, 69, "{said:?}");
    for part in [
        "queue P-plain-dlq takes messages of 256.0 KiB, less than",
        "cannot be dead-lettered",
        "MaximumMessageSize=1048576`",
    ] {
        assert!(said.stderr.contains(part), "{part} in {said:?}");
    }
    python(
        setup.server,
        "url = sqs.get_queue_url(QueueName=sys.argv[1] + 'plain-dlq')['QueueUrl']\n\
         sqs.set_queue_attributes(QueueUrl=url, Attributes={'MaximumMessageSize': '1048576'})",
        &[&setup.prefix],
    );
    let said = setup.hostler(&["check"]);
    assert_eq!(said.code, 0, "{said:?}");
}
