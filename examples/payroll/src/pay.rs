//! Pay out of working time. Amounts are in cents, and rounded to whole ones.

use serde::{Deserialize, Serialize};

/// Deductions of the gross pay, in thousandths.
const DEDUCTIONS: u64 = 125;

/// The time that an employee worked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeSheet {
    employee: u32,
    account: String,
    cents_per_hour: u32,
    /// Minutes worked in each month, the first one first.
    minutes: Vec<u32>,
}

/// A month's pay.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    employee: u32,
    /// Number of the month. The first is 1.
    month: usize,
    /// Account of the bank that the check goes to.
    pub(super) account: String,
    /// The net pay.
    pub(super) cents: u64,
}

impl TimeSheet {
    /// Returns a check for each month.
    pub(super) fn checks(&self) -> Vec<Check> {
        let check = |(index, &minutes): (usize, &u32)| Check {
            employee: self.employee,
            month: index + 1,
            account: self.account.clone(),
            cents: net(u64::from(minutes), u64::from(self.cents_per_hour)),
        };
        self.minutes.iter().enumerate().map(check).collect()
    }
}

impl Check {
    /// Returns the number of the check, of which there is one.
    pub(super) fn number(&self) -> String {
        format!("{}/{}", self.employee, self.month)
    }
}

/// Returns the net pay for a time. Both numbers fit into 32 bits.
fn net(minutes: u64, cents_per_hour: u64) -> u64 {
    let gross = (minutes * cents_per_hour + 30) / 60;
    gross - (gross / 1000 * DEDUCTIONS + (gross % 1000 * DEDUCTIONS + 500) / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_net_pay_is_rounded_to_cents() {
        for (minutes, per_hour, expected) in [(0, 4000, 0), (60, 4000, 3500), (1, 4000, 59), (9600, 3333, 466_620)] {
            assert_eq!(net(minutes, per_hour), expected, "{minutes} min at {per_hour}");
        }
        let most = u64::from(u32::MAX);
        assert!(net(most, most) > most);
    }

    #[test]
    fn each_month_has_a_check_with_a_number_of_its_own() {
        let sheet = TimeSheet { employee: 7, account: "a".to_owned(), cents_per_hour: 6000, minutes: vec![0, 60] };
        let checks = sheet.checks();
        assert_eq!(checks.iter().map(Check::number).collect::<Vec<_>>(), ["7/1", "7/2"]);
        assert_eq!(checks.iter().map(|check| check.cents).collect::<Vec<_>>(), [0, 5250]);
    }
}
