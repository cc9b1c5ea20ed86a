//! Notices for people and programs, and their format for each receiver.

use serde_json::{Value, json};

/// Maximum length of a Slack header in characters (Slack limit: 150).
const SLACK_HEADER: usize = 150;
/// Maximum length of a Slack section in characters. The Slack limit is 3,000, less a reserve for line ends.
const SLACK_SECTION: usize = 2900;
/// Maximum number of sections with lines in one message (Slack limit: 50 blocks). If there are more lines, the message
/// states only their number.
const SLACK_SECTIONS: usize = 10;

/// Format of a webhook's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Payload of a Slack incoming webhook: `text` and `blocks`.
    Slack,
    /// hostler's own document, for programs.
    Json,
}

/// A notice to deliver.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// Summary in one line.
    pub summary: String,
    /// Details, one line each.
    pub lines: Vec<String>,
    /// The same content as JSON, for programs.
    pub document: Value,
}

impl Notice {
    /// Returns the notice as plain text, for people to read.
    pub fn text(&self) -> String {
        std::iter::once(&self.summary).chain(&self.lines).map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Returns the payload for a webhook that expects this format.
    pub fn payload(&self, format: Format) -> Value {
        match format {
            Format::Json => self.document.clone(),
            Format::Slack => self.slack(),
        }
    }

    fn slack(&self) -> Value {
        let header: String = self.summary.chars().take(SLACK_HEADER).collect();
        let mut blocks = vec![json!({"type": "header", "text": {"type": "plain_text", "text": header}})];
        let section = |text: &str| json!({"type": "section", "text": {"type": "mrkdwn", "text": text}});
        blocks.extend(sections(&self.lines).iter().map(|text| section(text)));
        json!({"text": escaped(&self.summary), "blocks": blocks})
    }
}

/// Joins lines into Slack sections of limited length. If there are too many lines, states the number of the remaining
/// ones.
fn sections(lines: &[String]) -> Vec<String> {
    let mut sections: Vec<String> = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let (line, full) = (cut(&escaped(line)), sections.len() == SLACK_SECTIONS);
        match sections.last_mut() {
            Some(last) if last.chars().count() + line.chars().count() < SLACK_SECTION => {
                last.push('\n');
                last.push_str(&line);
            }
            _ if full => {
                sections.push(format!("… and {} more", lines.len() - n));
                break;
            }
            _ => sections.push(line),
        }
    }
    sections
}

/// Escapes Slack's markup for links and mentions.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(SLACK_SECTION) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(lines: Vec<String>) -> Notice {
        Notice { summary: "2 queues <alarm>".into(), lines, document: json!({"kind": "alarms"}) }
    }

    #[test]
    fn each_reader_gets_its_own_form() {
        let notice = notice(vec!["a & b".into(), "<!channel>".into()]);
        assert_eq!(notice.text(), "2 queues <alarm>\na & b\n<!channel>");
        assert_eq!(notice.payload(Format::Json), json!({"kind": "alarms"}));
        let slack = notice.payload(Format::Slack);
        assert_eq!(slack["text"], "2 queues &lt;alarm&gt;");
        assert_eq!(slack["blocks"][0]["text"], json!({"type": "plain_text", "text": "2 queues <alarm>"}));
        assert_eq!(slack["blocks"][1]["text"]["text"], "a &amp; b\n&lt;!channel&gt;");
    }

    /// Checks the limits of Slack messages: 50 blocks per message, 3,000 characters per section.
    #[test]
    fn thousands_of_lines_stay_within_what_slack_takes() {
        let lines: Vec<_> =
            (0..3000).map(|n| format!("queue-{n:04} holds 12 messages, from 10 on that is an alarm")).collect();
        let slack = notice(lines).payload(Format::Slack);
        let blocks = slack["blocks"].as_array().unwrap();
        assert!(blocks.len() <= 50, "{}", blocks.len());
        let texts: Vec<_> = blocks.iter().map(|block| block["text"]["text"].as_str().unwrap()).collect();
        assert!(texts.iter().all(|text| text.chars().count() <= 3000));
        let told: usize = texts[1..texts.len() - 1].iter().map(|text| text.lines().count()).sum();
        assert_eq!(*texts.last().unwrap(), format!("… and {} more", 3000 - told));
        let long = notice(vec!["ü".repeat(10_000)]).payload(Format::Slack);
        assert!(long["blocks"][1]["text"]["text"].as_str().unwrap().chars().count() <= 3000);
    }
}
