//! States of schedules, in the database that their messages are sent to. Names are those in the database, with the prefix.

use hostler_postgres::{Client, DatabaseError, Row, Transaction, Type};
use hostler_queue::{Advance, Advanced, QueueError};
use hostler_types::message::Outgoing;
use hostler_types::{ScheduleState, Timestamp};

use super::send::send_in;
use super::service::Service;

/// Returns the states of schedules, in the order of the names. `None`: the schedule has no state, or there is no table.
pub(super) async fn look(client: &Client, names: &[String]) -> Result<Vec<Option<ScheduleState>>, DatabaseError> {
    let sql =
        "SELECT s.definition, s.handled, s.sent, s.seen FROM unnest($1::text[]) WITH ORDINALITY AS n (name, place)
               LEFT JOIN hostler_queue.schedule s ON s.name = n.name ORDER BY n.place";
    match client.query(sql, &[(&names, Type::TEXT_ARRAY)]).await {
        Ok(rows) => Ok(rows.iter().map(read).collect()),
        // undefined_table, invalid_schema_name
        Err(error) if matches!(error.code(), Some("42P01" | "3F000")) => Ok(vec![None; names.len()]),
        Err(error) => Err(error),
    }
}

/// Stores the new state of a schedule and sends the messages in one transaction, if the schedule has the state that the step starts
/// from. The messages have been checked.
pub(super) async fn advance(service: &Service, step: Advance) -> Result<Advanced, QueueError> {
    let Advance { name, from, to, channel, messages } = step;
    let batch: Vec<Outgoing> = messages.into_iter().map(|(_, message)| message).collect();
    let mut client = service.run(service.database.client()).await?;
    let tx = service.run(client.transaction()).await?;
    if !service.run(store(&tx, &service.full(&name), from.as_ref(), &to)).await? {
        return Ok(Advanced::Changed);
    }
    if batch.is_empty() {
        // The channel may not exist, and must not be created.
        service.run(tx.commit()).await?;
        return Ok(Advanced::Done(Vec::new()));
    }
    let written = send_in(service, &tx, &channel, &batch).await?;
    service.run(tx.commit()).await?;
    Ok(Advanced::Done(written.committed(service)))
}

/// Stores a state, unless the schedule has another state than `from`. Returns `true` if the state was stored. Waits for other
/// transactions that store a state of the same schedule, and then compares with theirs.
async fn store(
    tx: &Transaction<'_>,
    name: &str,
    from: Option<&ScheduleState>,
    to: &ScheduleState,
) -> Result<bool, DatabaseError> {
    let (handled, sent, seen) = (micros(to.handled), to.sent.map(micros), micros(to.seen));
    let mut params = vec![
        (&name as _, Type::TEXT),
        (&to.definition as _, Type::TEXT),
        (&handled as _, Type::INT8),
        (&sent as _, Type::INT8),
        (&seen as _, Type::INT8),
    ];
    let Some(from) = from else {
        let sql =
            "INSERT INTO hostler_queue.schedule (name, definition, handled, sent, seen) VALUES ($1, $2, $3, $4, $5)
                   ON CONFLICT (name) DO NOTHING";
        return Ok(tx.execute(sql, &params).await? > 0);
    };
    let earlier = micros(from.handled);
    params.extend([(&from.definition as _, Type::TEXT), (&earlier as _, Type::INT8)]);
    let sql = "UPDATE hostler_queue.schedule SET definition = $2, handled = $3, sent = $4, seen = $5
               WHERE name = $1 AND definition = $6 AND handled = $7";
    Ok(tx.execute(sql, &params).await? > 0)
}

/// Reads a state. `None`: all columns are null.
/// `None`: there is no row, or it is not what hostler wrote. A step from there finds the row, and is refused.
fn read(row: &Row) -> Option<ScheduleState> {
    let number = |column: usize| row.try_get::<_, Option<i64>>(column).ok().flatten();
    Some(ScheduleState {
        definition: row.try_get::<_, Option<String>>(0).ok().flatten()?,
        handled: time(number(1)?),
        sent: number(2).map(time),
        seen: time(number(3)?),
    })
}

/// Converts a column to a time. The table has no times before 1970.
fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Converts a time to a column. The year 9999 is far from the limit.
fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.micros()).unwrap_or(i64::MAX)
}
