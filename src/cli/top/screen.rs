//! Screen of `hostler top`: a table of consumers, their outcomes, the latest failures, and a graph of the last minutes.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Row as Cells, Sparkline, Table};

use super::model::Row;
use hostler_health::FailureReport;
use hostler_types::printable::on_one_line;

/// Columns of the table, on the screen and with `--once`.
pub(super) const HEADER: [&str; 13] = [
    "CONSUMER", "STATE", "SINCE", "SLOTS", "MSG/S", "P50", "P99", "HANDLED", "FAILED", "VISIBLE", "DEAD", "OLDEST",
    "COUNTED",
];

/// Maximum number of failures that are shown.
const MAX_FAILURES: usize = 5;

/// Number of snapshots that the graph covers.
const HISTORY: usize = 300;

/// The 99th percentile of the handler durations at each snapshot, in microseconds.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<u64>);

impl History {
    /// Adds a snapshot, with the slowest of its consumers.
    pub(super) fn push(&mut self, rows: &[Row]) {
        let slowest = rows.iter().filter_map(|row| row.slowest).fold(0.0, f64::max);
        if self.0.len() == HISTORY {
            self.0.pop_front();
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "microseconds of a handler")]
        self.0.push_back((slowest * 1e6) as u64);
    }
}

/// Content of the lines above the table.
pub(super) struct Title<'a> {
    /// Process id of the host.
    pub(super) pid: u32,
    /// Time since the start of the host.
    pub(super) up: Duration,
    /// Verdict of the health check, with its reasons.
    pub(super) verdict: &'a str,
    pub(super) healthy: bool,
    /// Reason why no metrics are available, if so.
    pub(super) without: Option<&'a str>,
}

/// Returns the cells of a consumer, in the order of [`HEADER`].
pub(super) fn cells(row: &Row) -> Vec<String> {
    let count = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    vec![
        row.name.clone(),
        row.state.to_owned(),
        rounded(row.since),
        row.slots.map_or_else(|| row.busy.to_string(), |slots| format!("{}/{slots}", row.busy)),
        format!("{:.1}", row.rate),
        took(row.median),
        took(row.slowest),
        row.processed.to_string(),
        row.failed.to_string(),
        count(row.visible),
        count(row.dead_lettered),
        age(row.oldest).unwrap_or_else(|| "-".to_owned()),
        age(row.counted).map_or_else(|| "-".to_owned(), |age| format!("{age} ago")),
    ]
}

/// Formats a duration in seconds for people, in a suitable unit.
fn took(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.001 => format!("{:.0}µs", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.0}ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1}s"),
    }
}

/// Formats an age in seconds with its two largest units.
fn age(seconds: Option<f64>) -> Option<String> {
    seconds.map(|seconds| rounded(Duration::from_secs_f64(seconds.clamp(0.0, 1e9))))
}

/// Formats a duration with its two largest units.
fn rounded(duration: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Formats the outcomes of a consumer, most frequent first.
pub(super) fn outcomes(row: &Row) -> Option<String> {
    let mut outcomes: Vec<_> = row.outcomes.iter().filter(|(_, count)| **count > 0.0).collect();
    outcomes.sort_by(|a, b| b.1.total_cmp(a.1));
    let words: Vec<_> = outcomes.iter().map(|(word, count)| format!("{word} {count:.0}")).collect();
    (!words.is_empty()).then(|| format!("{}: {}", row.name, words.join(" · ")))
}

/// Formats the latest failures of all consumers, newest first, one per line.
pub(super) fn failures(rows: &[Row]) -> Vec<String> {
    let mut failures: Vec<_> =
        rows.iter().flat_map(|row| row.failures.iter().map(move |(age, failure)| (age, &row.name, failure))).collect();
    failures.sort_by_key(|(age, ..)| **age);
    let line = |(age, consumer, failure): &(&Duration, &String, &FailureReport)| {
        let FailureReport { message_id, outcome, disposition, reason, .. } = failure;
        let colon = if reason.is_empty() { "" } else { ": " };
        // Keeps the reason from a handler on one line.
        let reason = on_one_line(reason);
        format!("{} ago, {consumer}, {message_id}: {outcome}, {disposition}{colon}{reason}", rounded(**age))
    };
    failures.iter().take(MAX_FAILURES).map(line).collect()
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, title: &Title<'_>, rows: &[Row], history: &History) {
    let told: Vec<Line<'_>> = rows.iter().filter_map(outcomes).map(Line::from).collect();
    let failed: Vec<Line<'_>> = failures(rows).into_iter().map(Line::from).collect();
    let height = |lines: usize| u16::try_from(lines).unwrap_or(u16::MAX);
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(height(rows.len()).saturating_add(3)),
        Constraint::Length(height(told.len()).saturating_add(2)),
        Constraint::Length(if failed.is_empty() { 0 } else { height(failed.len()).saturating_add(2) }),
        Constraint::Min(3),
    ]);
    let [head, table, below, last, line]: [Rect; 5] = areas.areas(frame.area());
    frame.render_widget(headline(title), head);
    frame.render_widget(consumers(rows), table);
    frame.render_widget(ratatui::widgets::Paragraph::new(told).block(Block::bordered().title(" outcomes ")), below);
    frame.render_widget(
        ratatui::widgets::Paragraph::new(failed).block(Block::bordered().title(" last failures ")),
        last,
    );
    let shown = history.0.iter().rev().take(usize::from(line.width.saturating_sub(2)));
    let mut data: Vec<u64> = shown.copied().collect();
    data.reverse();
    let last = data.last().map_or(0.0, |micros| *micros as f64 / 1e6);
    let block = Block::bordered().title(format!(" p99 of the slowest consumer: {} ", took(Some(last))));
    frame.render_widget(Sparkline::default().data(data).block(block).style(Style::new().fg(Color::Cyan)), line);
}

fn headline<'a>(title: &'a Title<'_>) -> ratatui::widgets::Paragraph<'a> {
    let colour = if title.healthy { Color::Green } else { Color::Red };
    let verdict = Line::styled(title.verdict, Style::new().fg(colour).add_modifier(Modifier::BOLD));
    let mut about = format!("hostler, pid {}, up {} · q quits", title.pid, rounded(title.up));
    if let Some(without) = title.without {
        about.push_str(" · no metrics: ");
        about.push_str(without);
    }
    ratatui::widgets::Paragraph::new(vec![Line::from(about), verdict])
}

fn consumers(rows: &[Row]) -> Table<'_> {
    let lines = rows.iter().map(|row| {
        let bad = row.failed > 0;
        let cells = cells(row).into_iter().enumerate().map(move |(column, text)| {
            let cell = Cell::from(text);
            if column == 8 && bad { cell.style(Style::new().fg(Color::Red)) } else { cell }
        });
        Cells::new(cells)
    });
    let widths = HEADER.iter().enumerate().map(|(column, name)| {
        let widest = rows.iter().map(|row| cells(row)[column].chars().count()).max().unwrap_or_default();
        Constraint::Length(u16::try_from(widest.max(name.len())).unwrap_or(u16::MAX))
    });
    let header = Cells::new(HEADER).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(lines, widths).header(header).column_spacing(2).block(Block::bordered().title(" consumers "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn row() -> Row {
        Row {
            name: "mails".into(),
            state: "PROCESSING",
            since: Duration::from_secs(3_725),
            busy: 3,
            slots: Some(16),
            rate: 41.26,
            processed: 1_200,
            failed: 7,
            median: Some(0.0004),
            slowest: Some(0.25),
            visible: Some(9_000.0),
            dead_lettered: Some(0.0),
            oldest: None,
            counted: Some(12.7),
            outcomes: BTreeMap::from([("ack".into(), 1_193.0), ("failed".into(), 7.0), ("reply".into(), 0.0)]),
            failures: vec![failure(12, "m-2", "no such\nbucket\u{1b}[2J"), failure(90, "m-1", "")],
        }
    }

    fn failure(age: u64, message_id: &str, reason: &str) -> (Duration, FailureReport) {
        let failure = FailureReport {
            at: hostler_types::Timestamp::now(),
            message_id: message_id.into(),
            outcome: "failed".into(),
            disposition: "release".into(),
            reason: reason.into(),
        };
        (Duration::from_secs(age), failure)
    }

    #[test]
    fn the_last_failures_of_all_consumers_are_in_their_order() {
        let other = Row { name: "jobs".into(), failures: vec![failure(60, "m-3", "gone")], ..row() };
        let expected = [
            r"12s ago, mails, m-2: failed, release: no such\nbucket\u{1b}[2J",
            "1m ago, jobs, m-3: failed, release: gone",
            "1m 30s ago, mails, m-1: failed, release",
        ];
        assert_eq!(failures(&[row(), other]), expected);
        let many = Row { failures: (0..9).map(|age| failure(age, "m", "")).collect(), ..row() };
        assert_eq!(failures(&[many]).len(), MAX_FAILURES);
    }

    #[test]
    fn a_row_says_what_it_knows() {
        let expected = [
            "mails",
            "PROCESSING",
            "1h 2m",
            "3/16",
            "41.3",
            "400µs",
            "250ms",
            "1200",
            "7",
            "9000",
            "0",
            "-",
            "12s ago",
        ];
        assert_eq!(cells(&row()), expected);
        let unread = Row { visible: None, dead_lettered: None, counted: None, ..row() };
        assert_eq!(cells(&unread)[9..], ["-"; 4], "nothing passes for a count before there is one");
        assert_eq!(cells(&Row { slots: None, median: Some(2.0), ..row() })[3..6], ["3", "41.3", "2.0s"]);
        assert_eq!(outcomes(&row()).as_deref(), Some("mails: ack 1193 · failed 7"));
        assert_eq!(outcomes(&Row { outcomes: BTreeMap::new(), ..row() }), None);
    }

    #[test]
    fn all_of_it_is_on_the_screen() {
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        let mut history = History::default();
        history.push(&[row()]);
        let title = Title { pid: 7, up: Duration::from_secs(60), verdict: "healthy", healthy: true, without: None };
        terminal.draw(|frame| draw(frame, &title, &[row()], &history)).unwrap();
        let screen = terminal.backend().to_string();
        for shown in [
            "pid 7, up 1m",
            "healthy",
            "CONSUMER",
            "3/16",
            "mails: ack 1193 · failed 7",
            "12s ago, mails, m-2: failed, release: no such",
            "slowest consumer: 250ms",
            "█",
        ] {
            assert!(screen.contains(shown), "{shown}:\n{screen}");
        }
    }

    #[test]
    fn a_small_screen_and_many_consumers_are_no_fault() {
        let rows: Vec<Row> = std::iter::repeat_with(row).take(80).collect();
        let title =
            Title { pid: 7, up: Duration::ZERO, verdict: "unhealthy", healthy: false, without: Some("refused") };
        for (width, height) in [(1, 1), (10, 3), (80, 5), (200, 60)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &title, &rows, &History::default())).unwrap();
        }
    }

    #[test]
    fn the_history_is_bounded() {
        let mut history = History::default();
        (0..2 * HISTORY).for_each(|_| history.push(&[row()]));
        assert_eq!((history.0.len(), history.0[0]), (HISTORY, 250_000));
    }
}
