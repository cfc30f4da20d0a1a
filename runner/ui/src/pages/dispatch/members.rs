//! The members of an audience: who they are, and a form that adds and removes some.

use std::collections::BTreeSet;

use axum::http::Method;
use heddle_api::{MEMBERS_KNOWN_MAX, Members};
use maud::html;
use serde_json::json;

use crate::ctx::{Beat, segment};
use crate::elements::{empty, fault, fault_id, listed, named, number};
use crate::form::field;
use crate::frame::Page;
use crate::pages::answer::Answer;
use crate::words::{Arg, Lang, t};
use crate::{Ctx, Trouble};

/// The users that a field names, each without `uid_` and once. Their ids are the callers' own texts, which may contain
/// spaces.
fn uids(text: &str) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    text.split([',', '，', '、', '\n', '\r'])
        .map(str::trim)
        .filter(|one| !one.is_empty())
        .map(|one| one.strip_prefix("uid_").unwrap_or(one))
        .filter(|one| seen.insert(*one))
        .collect()
}

/// What a change of members does: the API removes first, and then adds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Moved<'a> {
    added: usize,
    removed: usize,
    /// Named to be added, but members already.
    already: Vec<&'a str>,
    /// Named to be removed, but no members.
    missing: Vec<&'a str>,
}

impl<'a> Moved<'a> {
    fn of(before: &[String], add: &[&'a str], remove: &[&'a str]) -> Self {
        let members: BTreeSet<&str> = before.iter().map(String::as_str).collect();
        let leaving: BTreeSet<&str> = remove.iter().copied().collect();
        let missing: Vec<&'a str> = remove.iter().copied().filter(|uid| !members.contains(*uid)).collect();
        let stays = |uid: &&str| members.contains(*uid) && !leaving.contains(*uid);
        let already: Vec<&'a str> = add.iter().copied().filter(stays).collect();
        Self {
            added: add.len() - already.len(),
            removed: remove.len() - missing.len(),
            already,
            missing,
        }
    }

    /// The same where not all members are known: only their number before and after tells what was done.
    fn counted(before: i64, after: i64) -> Self {
        let moved = |n: i64| usize::try_from(n).unwrap_or_default();
        Self {
            added: moved(after - before),
            removed: moved(before - after),
            ..Self::default()
        }
    }

    /// A sentence for each thing that was done, or that was not.
    fn said(&self, lang: Lang) -> String {
        let count = |n: usize| [("n", Arg::from(n))];
        let names = |names: &[&str]| [("names", Arg::from(named(names)))];
        let mut said = Vec::new();
        if self.added > 0 {
            said.push(lang.t("members-added", &count(self.added)));
        }
        if self.removed > 0 {
            said.push(lang.t("members-removed", &count(self.removed)));
        }
        if said.is_empty() {
            said.push(lang.t("members-same", &[]));
        }
        if !self.already.is_empty() {
            said.push(lang.t("members-already", &names(&self.already)));
        }
        if !self.missing.is_empty() {
            said.push(lang.t("members-missing", &names(&self.missing)));
        }
        said.join("\n")
    }
}

/// Adds and removes members, and says how many came and went, and for whom nothing changed.
async fn change_members(ctx: &Ctx, audience: &str, api: &str) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let [add, remove] = ["add", "remove"].map(|name| uids(field(&form, name).unwrap_or_default()));
    if add.is_empty() && remove.is_empty() {
        return Err(Trouble::at("/add", t!(ctx, "members-nobody")));
    }
    let before: Members = ctx.get(&format!("{api}?limit=1")).await?;
    let known = ctx.store().members(audience, None, MEMBERS_KNOWN_MAX as i64).await?;
    let change = json!({ "add": add, "remove": remove });
    let after: Members = ctx.ask(Method::PATCH, api, &change).await?;
    let moved = match known.next {
        None => Moved::of(&known.items, &add, &remove),
        Some(_) if add.is_empty() || remove.is_empty() => Moved::counted(before.count, after.count),
        // Some may have come and others gone.
        Some(_) => return Answer::back(ctx, Some(t!(ctx, "members-now", n = after.count))),
    };
    // If nothing was done at all, this is no success.
    let mark = if moved.added + moved.removed == 0 { "!" } else { "" };
    Answer::back(ctx, Some(format!("{mark}{}", moved.said(ctx.lang))))
}

pub(in crate::pages) async fn audience(ctx: &Ctx, name: &str) -> Result<Answer, Trouble> {
    let api = format!("/v1/audiences/{}/members", segment(name));
    if ctx.posts() {
        return change_members(ctx, name, &api).await;
    }
    let cursor = ctx
        .q("cursor")
        .map(|cursor| format!("&cursor={}", segment(cursor)))
        .unwrap_or_default();
    ctx.beats_with(Beat::Cluster);
    let found: Members = ctx.get(&format!("{api}?limit=200{cursor}")).await?;
    let head = html! { div.heading { div.grow { h1 { bdi { (name) } } p { (t!(ctx, "members")) (ctx.lang.colon()) (number(found.count)) } } } };
    let members = html! { section.panel { ul.row { @for uid in &found.members { li { a.tag href={ "/dispatch/as?uid=" (segment(uid)) } { bdi { (uid) } } } } } @if found.members.is_empty() { (empty(&t!(ctx, "none"))) } } };
    let body = html! {
        (ctx.live("audience-head", head))
        @if ctx.viewer.operates() {
            form.panel.fields method="post" {
                @for name in ["add", "remove"] {
                    label.field {
                        span { (t!(ctx, name)) }
                        textarea name=(name) rows="2" autocomplete="off" autocapitalize="off" spellcheck="false" aria-invalid=[ctx.fault(name).map(|_| "true")] aria-describedby=[fault_id(ctx, name)] { (ctx.typed(name).unwrap_or_default()) }
                        (fault(ctx, name))
                    }
                }
                div { button type="submit" { (t!(ctx, "save")) } }
            }
        }
        (listed(ctx, "members", members, found.next_cursor.as_deref()))
    };
    Answer::page(Page::new("dispatch", name, body).crumbs(vec![
        (t!(ctx, "nav-dispatch"), Some("/dispatch".into())),
        (name.to_owned(), None),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_users_may_contain_spaces() {
        assert_eq!(
            uids("ann smith, uid_bob\r\ncas，dee、ann smith,, \n"),
            ["ann smith", "bob", "cas", "dee"]
        );
        assert!(uids(" , \n").is_empty());
    }

    #[test]
    fn a_change_of_members_says_what_it_did() {
        let before = ["ann", "bob"].map(str::to_owned);
        let said = |add: &[&str], remove: &[&str]| Moved::of(&before, add, remove).said(Lang::En);
        assert_eq!(said(&["cas"], &[]), "1 member added.");
        assert_eq!(
            said(&["cas", "ann"], &["ann", "bob"]),
            "2 members added.\n2 members removed."
        );
        assert_eq!(
            said(&["bob"], &["ann", "dee"]),
            "1 member removed.\nAlready members: bob.\nNo members before: dee."
        );
        assert_eq!(
            said(&[], &["dee"]),
            "Nobody was added or removed.\nNo members before: dee."
        );
        assert_eq!(Moved::counted(20_000, 20_001).said(Lang::En), "1 member added.");
        assert_eq!(Moved::counted(20_000, 19_998).said(Lang::En), "2 members removed.");
        assert_eq!(Moved::counted(5, 5).said(Lang::En), "Nobody was added or removed.");
    }
}
