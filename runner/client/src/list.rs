//! Lists come in pages.

use serde::{Deserialize, Serialize};

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The things on this page.
    pub items: Vec<T>,
    /// What to pass as `cursor` for the next page; `None` on the last one.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

impl crate::Request {
    /// Sends this GET of a list again and again until the last page, or until `max` things are there.
    pub async fn send_for_all<T: serde::de::DeserializeOwned>(
        self,
        client: &crate::Client,
        max: usize,
    ) -> crate::Result<Vec<T>> {
        let mut all = Vec::new();
        let mut next = self.page(client, None);
        while all.len() < max {
            let again = next.page(client, None);
            let page: Page<T> = next.send().await?;
            let empty = page.items.is_empty();
            all.extend(page.items);
            match page.next_cursor {
                Some(cursor) if !empty => next = again.page(client, Some(&cursor)),
                _ => break,
            }
        }
        all.truncate(max);
        Ok(all)
    }
}
