//! The contents of a queue.

use heddle_api::{List, QueueTask};
use heddle_engine::{Engine, EngineError};
use heddle_store::queue_peek::{QueueCursor, QueuedTask};

use super::Refusal;

/// Where a page of a queue's task runs begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// At the beginning of what is claimed.
    #[default]
    Start,
    /// Behind one that is claimed.
    Claimed(uuid::Uuid, i16, i32),
    /// At the beginning of what waits.
    Waiting,
    /// Behind one that waits.
    Behind(QueueCursor),
}

fn parse(cursor: &str) -> Option<Position> {
    let mut parts = cursor.split('.');
    let position = match parts.next()? {
        "held" => Position::Claimed(
            parts.next()?.parse().ok()?,
            parts.next()?.parse().ok()?,
            parts.next()?.parse().ok()?,
        ),
        "waiting" => match parts.next() {
            None => Position::Waiting,
            Some(priority) => Position::Behind(QueueCursor {
                priority: priority.parse().ok()?,
                position: parts.next()?.parse().ok()?,
                key: (
                    parts.next()?.parse().ok()?,
                    parts.next()?.parse().ok()?,
                    parts.next()?.parse().ok()?,
                ),
            }),
        },
        _ => return None,
    };
    parts.next().is_none().then_some(position)
}

fn numbers(task: &QueuedTask) -> (uuid::Uuid, i16, i32) {
    (task.run.0, task.at.key.task as i16, task.at.key.item_number())
}

fn cursor_behind(task: &QueuedTask) -> String {
    let (run, index, item) = numbers(task);
    match task.claim {
        Some(_) => format!("held.{run}.{index}.{item}"),
        None => format!("waiting.{}.{}.{run}.{index}.{item}", task.priority, task.position),
    }
}

/// What workers have claimed of a queue, then what waits, in the order in which they will get it.
pub(crate) async fn tasks(
    engine: &Engine,
    queue: &str,
    cursor: Option<&str>,
    limit: i64,
) -> Result<List<QueueTask>, Refusal> {
    let position = match cursor {
        None => Position::Start,
        Some(cursor) => super::cursor::read(cursor, parse)?,
    };
    let store = engine.store();
    let mut found = match position {
        Position::Start => store.queue_claimed(queue, None, limit + 1).await?,
        Position::Claimed(run, task, item) => store.queue_claimed(queue, Some((run, task, item)), limit + 1).await?,
        Position::Waiting | Position::Behind(_) => Vec::new(),
    };
    let wanted = limit + 1 - found.len() as i64;
    if wanted > 0 {
        let after = match position {
            Position::Behind(cursor) => Some(cursor),
            _ => None,
        };
        found.extend(store.queue_waiting(queue, after, wanted).await?);
    }
    let more = found.len() as i64 > limit;
    found.truncate(limit.max(0) as usize);
    let next_cursor = found.last().filter(|_| more).map(cursor_behind);
    let mut items = Vec::with_capacity(found.len());
    for task in found {
        let revision = engine.catalog().revision(task.revision_id).await?;
        let (run, index) = (task.run, task.at.key.task);
        let unknown = || EngineError::unreadable(format!("run {run} in queue {queue} has an unknown task {index}"));
        let name = &revision.plan.task(index).ok_or_else(unknown)?.name;
        let (worker, lease_expires_at) = task.claim.unzip();
        items.push(QueueTask {
            run: task.run.0,
            group: revision.group_name.to_string(),
            task: name.to_string(),
            item: task.at.key.item,
            attempt: task.at.attempt,
            state: match worker {
                Some(_) => heddle_domain::state::TaskState::Running,
                None => heddle_domain::state::TaskState::Ready,
            },
            priority: task.priority,
            tags: task.tags,
            since: task.since.into(),
            expires_at: task.expires_at.map(Into::into),
            worker,
            lease_expires_at: lease_expires_at.map(Into::into),
        });
    }
    Ok(List { items, next_cursor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_given() {
        let run = uuid::Uuid::from_u128(7);
        assert_eq!(parse(&format!("held.{run}.3.-1")), Some(Position::Claimed(run, 3, -1)));
        let cursor = QueueCursor {
            priority: -10,
            position: 99,
            key: (run, 3, 5),
        };
        assert_eq!(
            parse(&format!("waiting.-10.99.{run}.3.5")),
            Some(Position::Behind(cursor))
        );
        assert_eq!(parse("waiting"), Some(Position::Waiting));
        for none in ["", "held", "waiting.1", "held.x.1.1", &format!("held.{run}.3.-1.4")] {
            assert_eq!(parse(none), None, "{none}");
        }
    }
}
