//! `heddle topic send`: the lines of a file or of stdin, of any length, with a line that says how far they are.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures::{Stream, stream};
use heddle_client::MessagesAccepted;
use tokio::sync::mpsc;

use super::backfill::bar;
use crate::exit::{NO, done, usage};
use crate::output::Format;
use crate::session::Session;
use crate::terminal::{self, tell};

/// The time between two reads of something that is watched.
pub(super) const STEP: Duration = Duration::from_millis(300);

/// How wide a bar is.
pub(super) const BAR: usize = 30;

/// How much of a file is read at once, and how many such pieces wait to be sent.
const PIECE_BYTES: usize = 256 << 10;
const PIECES_MAX: usize = 4;

/// Sends the lines of a file or of stdin. A file that cannot be read to its end is no fault of the server, which then gets
/// only a part of the request.
pub(super) async fn send(session: &Session, name: &str, file: &Path) -> Result<ExitCode> {
    let source = Arc::new(Source::default());
    let (pieces, total) = pieces(file, source.clone())?;
    let sending = session.client.send_message_stream(name, pieces);
    let line = || source.progress(total);
    match (with_progress(sending, line).await, source.failed.get()) {
        (_, Some(reason)) => Err(unreadable(file, reason)),
        (answer, None) => report_accepted(session, &answer?),
    }
}

fn unreadable(file: &Path, reason: impl std::fmt::Display) -> anyhow::Error {
    match file == Path::new("-") {
        true => usage(format!("cannot read stdin: {reason}")),
        false => usage(format!("cannot read {}: {reason}", file.display())),
    }
}

/// How far the reading of a file is.
#[derive(Debug, Default)]
struct Source {
    /// How many bytes were read; all but the last few pieces are sent.
    bytes: AtomicU64,
    /// Why it could not be read on.
    failed: OnceLock<String>,
}

impl Source {
    /// How far it is, of so many bytes if that is known.
    fn progress(&self, total: Option<u64>) -> String {
        let bytes = self.bytes.load(Ordering::Relaxed);
        match total {
            Some(total) => format!("{} {bytes}/{total} bytes", bar(bytes as i64, total as i64, BAR)),
            None => format!("{bytes} bytes"),
        }
    }
}

/// The bytes of a file or of stdin, in pieces, and how many there are, if that is known. A thread reads them, and waits
/// while pieces are not sent yet.
fn pieces(
    path: &Path,
    read_so_far: Arc<Source>,
) -> Result<(
    impl Stream<Item = std::io::Result<Bytes>> + Send + 'static + use<>,
    Option<u64>,
)> {
    let mut total = None;
    let mut source: Box<dyn Read + Send> = if path == Path::new("-") {
        terminal::says_that_stdin_is_read();
        Box::new(std::io::stdin())
    } else {
        let file = std::fs::File::open(path).map_err(|error| unreadable(path, error))?;
        let found = file.metadata().ok().filter(std::fs::Metadata::is_file);
        total = found.map(|found| found.len());
        Box::new(file)
    };
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    std::thread::spawn(move || {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = match source.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => {
                    piece.truncate(read);
                    read_so_far.bytes.fetch_add(read as u64, Ordering::Relaxed);
                    Ok(Bytes::from(piece))
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let _ = read_so_far.failed.set(error.to_string());
                    Err(error)
                }
            };
            let is_last = read.is_err();
            if sender.blocking_send(read).is_err() || is_last {
                return;
            }
        }
    });
    let pieces = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    Ok((pieces, total))
}

/// Waits for an answer; on a terminal, a line meanwhile says how far the sending is.
pub(super) async fn with_progress(
    sending: impl Future<Output = heddle_client::Result<MessagesAccepted>>,
    line: impl Fn() -> String,
) -> Result<MessagesAccepted> {
    tokio::pin!(sending);
    let live = terminal::is_interactive();
    let mut canvas = terminal::Canvas::default();
    loop {
        tokio::select! {
            answer = &mut sending => return Ok(answer?),
            () = tokio::time::sleep(STEP) => {}
        }
        if live {
            canvas.draw(&[terminal::cut(&line(), terminal::size().0)])?;
        }
    }
}

/// Prints how many messages were accepted, as the result, and tells which lines were rejected, as errors.
pub(super) fn report_accepted(session: &Session, answer: &MessagesAccepted) -> Result<ExitCode> {
    session
        .output
        .print(&serde_json::to_value(answer)?, |_| match answer.repeated {
            0 => format!("{} accepted", answer.accepted),
            repeated => format!("{} accepted, {repeated} of them already existed", answer.accepted),
        })?;
    if answer.rejected_total == 0 {
        return done();
    }
    if session.output == Format::Table {
        for line in rejections(answer) {
            tell!("error: {line}");
        }
    }
    Ok(ExitCode::from(NO))
}

/// Why lines were rejected: each reason once.
fn rejections(answer: &MessagesAccepted) -> Vec<String> {
    let mut reasons: Vec<(&str, u64, u64)> = Vec::new();
    for line in &answer.rejected {
        match reasons.iter_mut().find(|(detail, ..)| *detail == line.detail) {
            Some((_, _, count)) => *count += 1,
            None => reasons.push((&line.detail, line.line, 1)),
        }
    }
    let shown = reasons.iter().map(|(detail, first, count)| match count {
        1 => format!("line {first}: {detail}"),
        _ => format!("line {first} and {} more: {detail}", count - 1),
    });
    let more = answer.rejected_total.saturating_sub(answer.rejected.len() as u64);
    let more = (more > 0).then(|| format!("{more} more were rejected"));
    shown.chain(more).collect()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::exit::{USAGE, code};

    #[tokio::test]
    async fn bytes_are_counted_while_they_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lines");
        std::fs::write(&file, vec![b'x'; 3 * PIECE_BYTES]).unwrap();
        let source = Arc::new(Source::default());
        let (pieces, total) = pieces(&file, source.clone()).unwrap();
        assert_eq!(total, Some(3 * PIECE_BYTES as u64));
        let read: Vec<_> = pieces.map(|piece| piece.unwrap().len()).collect().await;
        assert_eq!(read.iter().sum::<usize>(), 3 * PIECE_BYTES);
        let said = source.progress(total);
        assert!(
            said.starts_with(&bar(1, 1, BAR)) && said.ends_with("786432/786432 bytes"),
            "{said}"
        );
        assert_eq!(source.progress(None), "786432 bytes");
        assert!(source.failed.get().is_none());
    }

    /// A directory can be opened, and not read.
    #[tokio::test]
    async fn what_cannot_be_read_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let source = Arc::new(Source::default());
        let (pieces, total) = pieces(directory, source.clone()).unwrap();
        assert_eq!(total, None);
        assert!(pieces.collect::<Vec<_>>().await.pop().unwrap().is_err());
        let error = unreadable(directory, source.failed.get().expect("a reason"));
        assert!(error.to_string().contains(&directory.display().to_string()), "{error}");
        assert_eq!(code(&error), USAGE);
    }

    #[test]
    fn each_reason_is_said_once() {
        let line = |line: u64, detail: &str| json!({"line": line, "detail": detail});
        let mut rejected: Vec<Value> = (1..=998).map(|number| line(number, "/due: no instant")).collect();
        rejected.insert(1, line(2, "no JSON"));
        let answer = json!({"accepted": 0, "repeated": 0, "rejected": rejected, "rejected_total": 1_000});
        let wanted = [
            "line 1 and 997 more: /due: no instant",
            "line 2: no JSON",
            "1 more were rejected",
        ];
        assert_eq!(rejections(&serde_json::from_value(answer).unwrap()), wanted);
    }
}
