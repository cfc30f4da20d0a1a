//! What a script's top level changes in the memory with which all scripts begin.

use super::super::image::PAGE_BYTES;
use crate::guest::Guest;
use wasmtime::{Memory, Store};

/// The unit of comparison: a page of the machine, which is what a write costs.
const BLOCK_BYTES: usize = 4 << 10;
/// Before each piece: its address and its length.
const HEAD_BYTES: usize = 8;

/// A change: the number of pages of the new memory, and the pieces that differ.
pub(crate) struct Change {
    pages: u64,
    pieces: Vec<u8>,
}

/// The change from one memory to another, which is at least as long.
pub(super) fn between(before: &[u8], after: &[u8]) -> Vec<u8> {
    const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    let mut bytes = ((after.len() / PAGE_BYTES as usize) as u32).to_le_bytes().to_vec();
    let mut piece: Option<usize> = None;
    let mut put = |from: usize, to: usize| {
        bytes.extend_from_slice(&(from as u32).to_le_bytes());
        bytes.extend_from_slice(&((to - from) as u32).to_le_bytes());
        bytes.extend_from_slice(&after[from..to]);
    };
    for (index, block) in after.chunks(BLOCK_BYTES).enumerate() {
        let at = index * BLOCK_BYTES;
        let old = before.get(at..at + block.len()).unwrap_or(&ZEROS[..block.len()]);
        match (block == old, piece) {
            (false, None) => piece = Some(at),
            (true, Some(from)) => {
                put(from, at);
                piece = None;
            }
            _ => {}
        }
    }
    if let Some(from) = piece {
        put(from, after.len());
    }
    bytes
}

impl Change {
    /// Reads what [`between`] wrote.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let (pages, pieces) = bytes.split_first_chunk::<4>().ok_or("is no snapshot")?;
        let change = Self {
            pages: u32::from_le_bytes(*pages).into(),
            pieces: pieces.to_vec(),
        };
        let end = change.pages * u64::from(PAGE_BYTES);
        let mut covered = 0;
        for (at, piece) in change.pieces() {
            covered += HEAD_BYTES + piece.len();
            if at as u64 + piece.len() as u64 > end {
                return Err("is a snapshot that goes beyond its memory".into());
            }
        }
        match covered == change.pieces.len() {
            true => Ok(change),
            false => Err("is a snapshot that was cut off".into()),
        }
    }

    /// The addresses and the pieces.
    fn pieces(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut rest = self.pieces.as_slice();
        std::iter::from_fn(move || {
            let (at, after) = rest.split_first_chunk::<4>()?;
            let (length, after) = after.split_first_chunk::<4>()?;
            let (piece, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = after;
            Some((u32::from_le_bytes(*at) as usize, piece))
        })
    }

    /// Applies it to a memory that is unchanged.
    pub fn apply(&self, store: &mut Store<Guest>, memory: Memory) -> wasmtime::Result<()> {
        let missing = self.pages.saturating_sub(memory.size(&*store));
        if missing > 0 {
            memory.grow(&mut *store, missing)?;
        }
        let memory = memory.data_mut(&mut *store);
        for (at, piece) in self.pieces() {
            memory[at..at + piece.len()].copy_from_slice(piece);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_what_differs() {
        let page = PAGE_BYTES as usize;
        let before = vec![7; page];
        let mut after = before.clone();
        after.resize(2 * page, 0);
        after[5] = 1;
        after[BLOCK_BYTES] = 2;
        after[page - 1] = 3;
        after[2 * page - 1] = 4;
        let bytes = between(&before, &after);
        let change = Change::read(&bytes).unwrap();
        let found: Vec<(usize, usize)> = change.pieces().map(|(at, piece)| (at, piece.len())).collect();
        let last = page - BLOCK_BYTES;
        assert_eq!(
            found,
            [(0, 2 * BLOCK_BYTES), (last, BLOCK_BYTES), (page + last, BLOCK_BYTES)]
        );
        assert_eq!(change.pages, 2);
        let mut made = before;
        made.resize(2 * page, 0);
        for (at, piece) in change.pieces() {
            made[at..at + piece.len()].copy_from_slice(piece);
        }
        assert!(made == after);
        assert!(Change::read(&bytes[..bytes.len() - 1]).is_err());
        assert!(Change::read(&[1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 9]).is_err());
        assert!(Change::read(&between(&made, &made)).is_ok_and(|none| none.pieces().next().is_none()));
    }
}
