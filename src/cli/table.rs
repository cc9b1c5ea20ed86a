//! Text tables for users. Each column is as wide as its widest cell.

/// Formats rows below a header. Aligns the first column to the left, and all others to the right.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let width = |(column, name): (usize, &&str)| {
        rows.iter().map(|row| cell(row, column)).chain([name.chars().count()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = header.iter().enumerate().map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rows = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(header.to_vec())).chain(rows).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["orders".into(), "7".into()], vec!["a".into(), "1234".into()]];
        assert_eq!(table(&["channel", "n"], &rows), "channel     n\norders      7\na        1234");
    }
}
