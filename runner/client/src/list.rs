//! Lists come in pages.

use heddle_api::List;

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
            let page: List<T> = next.send().await?;
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
