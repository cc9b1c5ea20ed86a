//! Screen of `hostler top`. Shows a table of consumers, the last failures, the outcomes, and a chart of the last minutes.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row as Cells, Sparkline, Table};

use super::layout::{Lines, Plan, TITLE, columns, plan};
use super::model::Row;
use hostler_health::FailureReport;
use hostler_types::printable::on_one_line;

/// Headings of the columns with `--once`.
pub(super) const HEADER: [&str; 13] = [
    "CONSUMER", "STATE", "SINCE", "SLOTS", "MSG/S", "P50", "P99", "HANDLED", "FAILED", "VISIBLE", "DEAD", "OLDEST",
    "COUNTED",
];

/// Maximum number of failures that are shown.
const MAX_FAILURES: usize = 5;

/// Number of snapshots that the chart covers.
const HISTORY: usize = 300;

/// The 99th percentile of the handler durations at each snapshot, in microseconds.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<u64>);

impl History {
    /// Adds a snapshot to the history. Stores only the highest 99th percentile of all consumers in the snapshot.
    pub(super) fn push(&mut self, rows: &[Row]) {
        let highest = rows.iter().filter_map(|row| row.p99).fold(0.0, f64::max);
        if self.0.len() == HISTORY {
            self.0.pop_front();
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "microseconds of a handler")]
        self.0.push_back((highest * 1e6) as u64);
    }
}

/// Content of the lines above the table.
pub(super) struct Title<'a> {
    /// Process id of the host.
    pub(super) pid: u32,
    /// Time since the start of the host.
    pub(super) up: Duration,
    /// Age of the health file.
    pub(super) age: Duration,
    /// Verdict of the health check, with its reasons.
    pub(super) verdict: &'a str,
    pub(super) healthy: bool,
    /// Reason why no metrics are available. `None`: metrics are available.
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
        took(row.p50),
        took(row.p99),
        row.processed.to_string(),
        row.failed.to_string(),
        count(row.visible),
        count(row.dead_lettered),
        age(row.oldest).unwrap_or_else(|| "-".to_owned()),
        age(row.counted).map_or_else(|| "-".to_owned(), |age| format!("{age} ago")),
    ]
}

/// Formats a duration in seconds with a suitable unit.
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

/// A failure of a consumer, and its age.
struct Shown<'a> {
    age: Duration,
    consumer: &'a str,
    failure: &'a FailureReport,
}

impl Shown<'_> {
    /// Formats the failure on one line. If `most` is set, cuts the message id to this number of characters.
    fn line(&self, most: Option<usize>) -> String {
        let FailureReport { message_id, outcome, disposition, reason, .. } = self.failure;
        let message_id = most.map_or_else(|| message_id.clone(), |most| cut(message_id, most));
        let colon = if reason.is_empty() { "" } else { ": " };
        // Keeps the reason from a handler on one line.
        let reason = on_one_line(reason);
        let (age, consumer) = (rounded(self.age), self.consumer);
        format!("{age} ago, {consumer}, {message_id}: {outcome}, {disposition}{colon}{reason}")
    }
}

/// Returns the last failures of all consumers, the latest first.
fn last_failures(rows: &[Row]) -> Vec<Shown<'_>> {
    let mut failures = Vec::new();
    for row in rows {
        let of_row = row.failures.iter().map(|(age, failure)| Shown { age: *age, consumer: &row.name, failure });
        failures.extend(of_row);
    }
    failures.sort_by_key(|failure| failure.age);
    failures.truncate(MAX_FAILURES);
    failures
}

/// Formats the last failures of all consumers, the latest first, one per line.
pub(super) fn failures(rows: &[Row]) -> Vec<String> {
    last_failures(rows).iter().map(|failure| failure.line(None)).collect()
}

/// A column of the screen: its heading, and a function that formats a consumer's cell.
type Column = (&'static str, fn(&Row) -> String);

/// All columns of the screen. Columns that do not fit are left out.
const COLUMNS: [Column; 13] = [
    ("CONSUMER", |row| row.name.clone()),
    ("STATE", |row| row.state.to_owned()),
    ("SINCE", |row| brief(row.since)),
    ("SLOTS", |row| row.slots.map_or_else(|| row.busy.to_string(), |slots| format!("{}/{slots}", row.busy))),
    ("MSG/S", |row| rate(row.rate)),
    ("FAIL/S", |row| rate(row.failure_rate)),
    ("FAILED", |row| count(row.failed as f64)),
    ("HANDLED", |row| count(row.processed as f64)),
    ("P50", |row| took(row.p50)),
    ("P99", |row| took(row.p99)),
    ("VISIBLE", |row| row.visible.map_or_else(dash, count)),
    ("DEAD", |row| row.dead_lettered.map_or_else(dash, count)),
    ("OLDEST", |row| row.oldest.map_or_else(dash, |oldest| brief(seconds(oldest)))),
];

/// Indexes of the columns that may be left out, in this order: SINCE, P50, HANDLED, OLDEST, DEAD, SLOTS.
const EXPENDABLE: [usize; 6] = [2, 8, 7, 12, 11, 3];

/// Indexes of the columns about failures. If a consumer has failures, its cells in these columns are red.
const FAILING: [usize; 2] = [5, 6];

/// Maximum number of characters of a message id on the screen.
const MAX_ID: usize = 14;

fn dash() -> String {
    "-".to_owned()
}

/// Formats a rate per second with at most six characters.
fn rate(rate: f64) -> String {
    if rate < 999.95 { format!("{rate:.1}") } else { count(rate) }
}

/// Formats a number with at most five characters.
fn count(number: f64) -> String {
    match number {
        number if number < 99_999.5 => format!("{number:.0}"),
        number if number < 999_500.0 => format!("{:.0}k", number / 1e3),
        number if number < 9.95e6 => format!("{:.1}M", number / 1e6),
        number => format!("{:.0}M", number / 1e6),
    }
}

/// Converts a number of seconds from a scrape. NaN, which a scrape may contain, counts as zero.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.clamp(0.0, 1e9)).unwrap_or_default()
}

/// Formats a duration with its largest unit only.
fn brief(duration: Duration) -> String {
    let text = rounded(duration);
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Cuts `text` to at most `most` characters. If characters are cut off, the result ends in `…`.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Draws the whole screen. If some lines of a section do not fit, leaves these lines out, and shows that lines are missing.
pub(super) fn draw(frame: &mut Frame<'_>, title: &Title<'_>, rows: &[Row], history: &History) {
    let told: Vec<_> = rows.iter().filter_map(outcomes).collect();
    let failed: Vec<_> = last_failures(rows).iter().map(|failure| failure.line(Some(MAX_ID))).collect();
    let lines = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let there = Lines { consumers: lines(rows.len()), failures: lines(failed.len()), outcomes: lines(told.len()) };
    let Plan { shown, chart } = plan(frame.area().height, there);
    let more = rows.len() - usize::from(shown.consumers);
    let headed = |lines: u16| if lines == 0 { 0 } else { lines + 1 };
    let areas = Layout::vertical([
        Constraint::Length(TITLE),
        Constraint::Length(shown.consumers + 1),
        Constraint::Length(u16::from(more > 0)),
        Constraint::Length(headed(shown.failures)),
        Constraint::Length(headed(shown.outcomes)),
        Constraint::Length(chart),
    ]);
    let [head, table, cut_off, failures, outcomes, line]: [Rect; 6] = areas.areas(frame.area());
    frame.render_widget(headline(title, rows), head);
    frame.render_widget(consumers(&rows[..usize::from(shown.consumers)], table.width), table);
    frame.render_widget(Line::from(format!("… and {more} more; `hostler top --once` shows all")), cut_off);
    frame.render_widget(section("last failures", &failed, shown.failures), failures);
    frame.render_widget(section("outcomes since the start", &told, shown.outcomes), outcomes);
    let newest = history.0.iter().rev().take(usize::from(line.width));
    let mut data: Vec<u64> = newest.copied().collect();
    data.reverse();
    let last = data.last().map_or(0.0, |micros| *micros as f64 / 1e6);
    let block = heading(format!("highest p99 of a consumer at each refresh: {} now", took(Some(last))));
    frame.render_widget(Sparkline::default().data(data).block(block).style(Style::new().fg(Color::Cyan)), line);
}

fn heading<'a>(text: String) -> Block<'a> {
    Block::new().borders(Borders::TOP).title(format!(" {text} "))
}

/// Returns the first `shown` lines of a section. If the section has more than `shown` lines, the heading says how many lines are
/// shown.
fn section<'a>(name: &str, lines: &'a [String], shown: u16) -> Paragraph<'a> {
    let shown = usize::from(shown);
    let name = if shown < lines.len() { format!("{name} ({shown} of {})", lines.len()) } else { name.to_owned() };
    Paragraph::new(lines.iter().take(shown).map(|line| Line::from(line.as_str())).collect::<Vec<_>>())
        .block(heading(name))
}

fn headline<'a>(title: &'a Title<'_>, rows: &[Row]) -> Paragraph<'a> {
    let colour = if title.healthy { Color::Green } else { Color::Red };
    let verdict = Line::styled(title.verdict, Style::new().fg(colour).add_modifier(Modifier::BOLD));
    let mut about = format!("pid {}, up {}", title.pid, rounded(title.up));
    if let Some(row) = rows.first() {
        about.push_str(&format!(" · rates over {}", rounded(row.over)));
    }
    about.push_str(&format!(" · health {} old", rounded(title.age)));
    if let Some(counted) = rows.iter().filter_map(|row| row.counted).reduce(f64::max) {
        about.push_str(&format!(" · counts {} old", rounded(seconds(counted))));
    }
    about.push_str(" · q quits");
    if let Some(without) = title.without {
        about.push_str(" · no metrics: ");
        about.push_str(without);
    }
    Paragraph::new(vec![Line::from(about), verdict])
}

/// Returns the table of these consumers. Leaves out columns that do not fit into `width`.
fn consumers(rows: &[Row], width: u16) -> Table<'_> {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| COLUMNS.iter().map(|(_, cell)| cell(row)).collect()).collect();
    let widest = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<_> = COLUMNS.iter().enumerate().map(|(at, (name, _))| widest(at).max(name.len())).collect();
    let (kept, name) = columns(usize::from(width), &widths, &EXPENDABLE);
    let place = |column: usize| if column == 0 { name } else { widths[column] };
    let align = |column: usize, text: &str| match column {
        0 => Text::from(cut(text, name)),
        1 => Text::from(text.to_owned()),
        _ => Text::from(text.to_owned()).right_aligned(),
    };
    let lines = rows.iter().zip(&cells).map(|(row, cells)| {
        let cells = kept.iter().map(|column| {
            let cell = Cell::from(align(*column, &cells[*column]));
            let fails = FAILING.contains(column) && row.failed > 0;
            if fails { cell.style(Style::new().fg(Color::Red)) } else { cell }
        });
        Cells::new(cells.collect::<Vec<_>>())
    });
    let header =
        Cells::new(kept.iter().map(|column| Cell::from(align(*column, COLUMNS[*column].0))).collect::<Vec<_>>());
    let places = kept.iter().map(|column| Constraint::Length(u16::try_from(place(*column)).unwrap_or(u16::MAX)));
    let places: Vec<_> = places.collect();
    Table::new(lines.collect::<Vec<_>>(), places)
        .header(header.style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(1)
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
            failure_rate: 0.2,
            over: Duration::from_secs(1),
            processed: 1_200,
            failed: 7,
            p50: Some(0.0004),
            p99: Some(0.25),
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
        assert_eq!(cells(&Row { slots: None, p50: Some(2.0), ..row() })[3..6], ["3", "41.3", "2.0s"]);
        assert_eq!(outcomes(&row()).as_deref(), Some("mails: ack 1193 · failed 7"));
        assert_eq!(outcomes(&Row { outcomes: BTreeMap::new(), ..row() }), None);
    }

    fn title<'a>() -> Title<'a> {
        let (up, age) = (Duration::from_secs(60), Duration::from_millis(1_400));
        Title { pid: 7, up, age, verdict: "healthy", healthy: true, without: None }
    }

    /// Returns the lines of a screen of this size.
    fn drawn((width, height): (u16, u16), title: &Title<'_>, rows: &[Row]) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut history = History::default();
        history.push(rows);
        terminal.draw(|frame| draw(frame, title, rows, &history)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    /// Returns the index of the first line that contains this text.
    fn at(screen: &[String], text: &str) -> usize {
        let found = screen.iter().position(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("{text}:\n{}", screen.join("\n")))
    }

    #[test]
    fn all_that_matters_is_on_a_screen_of_80_by_24() {
        let long = Row {
            name: "thumbnails".into(),
            state: "BREAKER OPEN",
            slots: Some(128),
            busy: 128,
            rate: 12_345.6,
            failure_rate: 1_000.0,
            failed: 123_456,
            processed: 9_876_543,
            visible: Some(1_234_567.0),
            dead_lettered: Some(99_999.0),
            oldest: Some(7_140.0),
            failures: vec![failure(1, "01932f0c-5a1b-7c3e-8000-000000000000", "no such bucket: uploads"); 5],
            ..row()
        };
        let screen = drawn((80, 24), &title(), &[row(), long]);
        assert_eq!(screen[0], "pid 7, up 1m · rates over 1s · health 1s old · counts 12s old · q quits");
        assert_eq!(screen[1], "healthy");
        let [header, mails, thumbnails] = [2, 3, 4].map(|line| screen[line].split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            header,
            ["CONSUMER", "STATE", "SLOTS", "MSG/S", "FAIL/S", "FAILED", "P99", "VISIBLE", "DEAD", "OLDEST"]
        );
        assert_eq!(mails, ["mails", "PROCESSING", "3/16", "41.3", "0.2", "7", "250ms", "9000", "0", "-"]);
        let expected =
            ["thumbnails", "BREAKER", "OPEN", "128/128", "12346", "1000", "123k", "250ms", "1.2M", "99999", "1h"];
        assert_eq!(thumbnails, expected);
        let order = [
            "MSG/S",
            " last failures ─",
            " outcomes since the start ─",
            " highest p99 of a consumer at each refresh: 250ms now ─",
            "█",
        ];
        let lines = order.map(|text| at(&screen, text));
        assert!(lines.is_sorted(), "{lines:?}");
        at(&screen, "1s ago, thumbnails, 01932f0c-5a1b…: failed, release: no such bucket: uploads");
        at(&screen, "mails: ack 1193 · failed 7");
    }

    #[test]
    fn a_wide_screen_has_every_column() {
        let screen = drawn((120, 24), &title(), &[row()]);
        let header: Vec<_> = screen[2].split_whitespace().collect();
        assert_eq!(header, COLUMNS.map(|(name, _)| name));
    }

    #[test]
    fn what_is_cut_is_said() {
        let rows: Vec<Row> = (0..40).map(|number| Row { name: format!("consumer-{number}"), ..row() }).collect();
        let screen = drawn((80, 24), &title(), &rows);
        assert!(screen[19].starts_with("consumer-16 "), "{screen:#?}");
        assert_eq!(screen[20], "… and 23 more; `hostler top --once` shows all");
        assert!(screen[21].contains("last failures (2 of 5)"), "{screen:#?}");
        let named = Row { name: "a-consumer-with-quite-a-long-name".into(), ..row() };
        assert!(drawn((80, 24), &title(), &[named])[3].starts_with("a-consumer-with-… "));
        let rows = &rows[..14];
        let screen = drawn((80, 24), &title(), rows);
        at(&screen, "last failures");
        assert!(!screen.iter().any(|line| line.contains("more;")), "{screen:#?}");
    }

    #[test]
    fn a_small_screen_and_many_consumers_are_no_fault() {
        let rows: Vec<Row> = std::iter::repeat_with(row).take(80).collect();
        let title = Title { verdict: "unhealthy", healthy: false, without: Some("refused"), ..title() };
        for screen in [(1, 1), (10, 3), (80, 5), (200, 60)] {
            drawn(screen, &title, &rows);
        }
    }

    #[test]
    fn the_history_is_bounded() {
        let mut history = History::default();
        (0..2 * HISTORY).for_each(|_| history.push(&[row()]));
        assert_eq!((history.0.len(), history.0[0]), (HISTORY, 250_000));
    }

    #[test]
    fn a_number_that_is_no_time_is_shown_as_zero() {
        for number in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            assert_eq!(seconds(number), Duration::ZERO);
        }
        assert_eq!(seconds(f64::INFINITY), Duration::from_secs(1_000_000_000));
    }
}
