//! Layout of `hostler top`. Decides which lines and columns fit on the screen. Performs no I/O.

/// Number of lines above the table.
pub(super) const TITLE: u16 = 2;

/// Minimum height of the chart in lines, with its heading. If fewer lines are available, the chart is left out.
const LEAST_CHART: u16 = 3;

/// Number of latest failures that have priority over consumers: if not everything fits, the list of consumers is cut first.
const LEAST_FAILURES: u16 = 2;

/// Width up to which the name column has priority over expendable columns. If the screen is too narrow, expendable columns are
/// left out before names are cut to less than this width.
const LONG_NAME: usize = 16;

/// Minimum width of the name column. Names are never cut to fewer characters than this number.
const SHORT_NAME: usize = 8;

/// Number of lines of each section, without headings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) consumers: u16,
    pub(super) failures: u16,
    pub(super) outcomes: u16,
}

/// Height of each section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Number of lines to show. If the list of consumers is cut, one more line below the list says so.
    pub(super) shown: Lines,
    /// Height of the chart with its heading. 0: the chart is left out.
    pub(super) chart: u16,
}

/// Decides how many lines of each section fit on a screen of this height. `there` contains the number of lines that
/// each section has. Reserves lines for the latest [`LEAST_FAILURES`] failures first, then for the consumers, for older
/// failures, and for the outcomes, in this order. The chart gets the remaining height.
pub(super) fn plan(height: u16, there: Lines) -> Plan {
    let header = 1;
    let mut left = height.saturating_sub(TITLE + header);
    let least = match there.failures.min(LEAST_FAILURES) {
        0 => 0,
        failures => failures + 1,
    };
    let fits = there.consumers <= left.saturating_sub(least);
    let consumers = if fits { there.consumers } else { left.saturating_sub(least + 1) };
    left = left.saturating_sub(consumers + u16::from(!fits));
    let mut section = |lines: u16| {
        let shown = lines.min(left.saturating_sub(1));
        left -= if shown > 0 { shown + 1 } else { 0 };
        shown
    };
    let (failures, outcomes) = (section(there.failures), section(there.outcomes));
    let chart = if left >= LEAST_CHART { left } else { 0 };
    Plan { shown: Lines { consumers, failures, outcomes }, chart }
}

/// Decides which columns fit side by side, with a space between them. Returns their indexes, and the width of the first column,
/// which contains the names. `expendable` contains the indexes of the columns that may be left out, in the order in which they
/// are left out.
pub(super) fn columns(width: usize, widths: &[usize], expendable: &[usize]) -> (Vec<usize>, usize) {
    let name = widths.first().copied().unwrap_or_default();
    let mut kept: Vec<usize> = (0..widths.len()).collect();
    let others = |kept: &[usize]| kept.iter().skip(1).map(|column| widths[*column] + 1).sum::<usize>();
    for gone in expendable {
        if name.min(LONG_NAME) + others(&kept) <= width {
            break;
        }
        kept.retain(|column| column != gone);
    }
    let room = width.saturating_sub(others(&kept));
    (kept, name.min(room.max(SHORT_NAME)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(height: u16, consumers: u16, failures: u16, outcomes: u16) -> ([u16; 3], u16) {
        let Plan { shown, chart } = plan(height, Lines { consumers, failures, outcomes });
        ([shown.consumers, shown.failures, shown.outcomes], chart)
    }

    #[test]
    fn the_chart_gets_what_rates_and_failures_leave() {
        assert_eq!(shown(24, 3, 5, 3), ([3, 5, 3], 8));
        assert_eq!(shown(24, 1, 0, 0), ([1, 0, 0], 20));
        assert_eq!(shown(24, 8, 5, 8), ([8, 5, 6], 0));
        assert_eq!(shown(24, 12, 5, 12), ([12, 5, 2], 0));
        assert_eq!(shown(24, 40, 5, 40), ([17, 2, 0], 0), "a line says that there are more");
        assert_eq!(shown(24, 40, 0, 40), ([20, 0, 0], 0));
        assert_eq!(shown(24, 18, 1, 0), ([18, 1, 0], 0));
    }

    #[test]
    fn no_height_is_too_small() {
        for height in 0..40 {
            let Plan { shown, chart } = plan(height, Lines { consumers: 9, failures: 5, outcomes: 9 });
            let headed = |lines: u16| lines + u16::from(lines > 0);
            let cut = u16::from(shown.consumers < 9);
            let used = TITLE + 1 + shown.consumers + cut + headed(shown.failures) + headed(shown.outcomes) + chart;
            assert!(used <= height.max(TITLE + 2), "{height}: {used}");
        }
    }

    #[test]
    fn expendable_columns_go_before_a_name_is_cut_to_less_than_its_place() {
        let widths = [10, 5, 5, 5];
        assert_eq!(columns(28, &widths, &[2, 1]), (vec![0, 1, 2, 3], 10));
        assert_eq!(columns(27, &widths, &[2, 1]), (vec![0, 1, 3], 10));
        assert_eq!(columns(21, &widths, &[2, 1]), (vec![0, 3], 10));
        assert_eq!(columns(15, &widths, &[2, 1]), (vec![0, 3], 9));
        assert_eq!(columns(3, &widths, &[2, 1]), (vec![0, 3], 8));
        assert_eq!(columns(30, &[60, 5], &[1]), (vec![0, 1], 24), "a very long one is cut first");
    }
}
