//! The picture of groups that follow each other, with the state of each one's last run.

use std::collections::{BTreeMap, BTreeSet};

use heddle_api::RunState;
use heddle_domain::name::composed;
use heddle_store::pages::group::LinkLine;
use maud::{Markup, html};

use super::drawing::{HEIGHT, node, width_of, zoom_buttons};
use crate::ctx::segment;
use crate::elements::{empty, legend, state_word};
use crate::layout::layered;
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many links are read.
const LINKS_MAX: i64 = 3_000;
/// How many groups are drawn.
const NODES_MAX: usize = 300;

struct Node {
    name: String,
    id: i64,
    enabled: bool,
}

/// The groups that are connected with one whose name contains the text. Groups without links are only in the list.
fn chosen(links: &[LinkLine], text: Option<&str>) -> (Vec<Node>, Vec<(usize, usize, bool)>) {
    let text = text.map(|text| composed(&text.to_lowercase()));
    let fits = |name: &str| text.as_ref().is_none_or(|text| name.to_lowercase().contains(text));
    let mut near: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for link in links {
        near.entry(&link.upstream).or_default().push(&link.group);
        near.entry(&link.group).or_default().push(&link.upstream);
    }
    let mut open: Vec<&str> = near.keys().copied().filter(|name| fits(name)).collect();
    let mut kept: BTreeSet<&str> = open.iter().copied().collect();
    while let Some(name) = open.pop() {
        for other in &near[name] {
            if kept.insert(other) {
                open.push(other);
            }
        }
    }
    let mut nodes: Vec<Node> = Vec::new();
    let mut indexes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut edges = Vec::new();
    for link in links.iter().filter(|link| kept.contains(link.group.as_str())) {
        let ends = [
            (&link.upstream, link.upstream_id, link.upstream_enabled),
            (&link.group, link.group_id, link.enabled),
        ];
        let [from, to] = ends.map(|(name, id, enabled)| {
            *indexes.entry(name).or_insert_with(|| {
                nodes.push(Node {
                    name: name.clone(),
                    id,
                    enabled,
                });
                nodes.len() - 1
            })
        });
        // A group that starts runs of another one comes before it.
        let starts = link.kind == "sub_run";
        edges.push(if starts { (to, from, true) } else { (from, to, false) });
    }
    (nodes, without_cycles(edges))
}

/// A group may start runs of a group that follows it. The picture leaves out lines that would lead back.
fn without_cycles(edges: Vec<(usize, usize, bool)>) -> Vec<(usize, usize, bool)> {
    let mut kept: Vec<(usize, usize, bool)> = Vec::with_capacity(edges.len());
    let mut out: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    // Links of `depends_on` are added first, because they have no cycles.
    let (follows, starts): (Vec<_>, Vec<_>) = edges.into_iter().partition(|edge| !edge.2);
    for edge in follows {
        out.entry(edge.0).or_default().push(edge.1);
        kept.push(edge);
    }
    for edge in starts {
        if edge.0 == edge.1
            || reaches(&out, edge.1, edge.0)
            || kept.iter().any(|one| (one.0, one.1) == (edge.0, edge.1))
        {
            continue;
        }
        out.entry(edge.0).or_default().push(edge.1);
        kept.push(edge);
    }
    kept
}

fn reaches(out: &BTreeMap<usize, Vec<usize>>, from: usize, to: usize) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        for next in out.get(&at).into_iter().flatten() {
            if seen.insert(*next) {
                open.push(*next);
            }
        }
    }
    false
}

pub(super) async fn shown(ctx: &Ctx) -> Result<Markup, Trouble> {
    let links = ctx.store().page_links(LINKS_MAX).await?;
    let (nodes, edges) = chosen(&links, ctx.q("q"));
    let ids: Vec<i64> = nodes.iter().map(|node| node.id).collect();
    let ends: BTreeMap<i64, RunState> = if nodes.len() > NODES_MAX {
        BTreeMap::new()
    } else {
        ctx.store().page_last_ends(&ids).await?.into_iter().collect()
    };
    let drawn = html! {
        @if nodes.is_empty() { (empty(&t!(ctx, "no-links"))) }
        @else if nodes.len() > NODES_MAX { (empty(&t!(ctx, "links-too-many", n = nodes.len()))) }
        @else { (draw(ctx, &nodes, &edges, &ends)) }
    };
    Ok(html! {
        section.panel aria-label=(t!(ctx, "tab-graph")) {
            div.row {
                p.muted.grow { (t!(ctx, "links-hint")) " " (t!(ctx, "links-only")) }
                (legend(ctx, &[RunState::Succeeded, RunState::Failed, RunState::Cancelled]))
                (zoom_buttons(ctx))
            }
            (ctx.live("links", drawn))
        }
    })
}

fn draw(ctx: &Ctx, nodes: &[Node], edges: &[(usize, usize, bool)], ends: &BTreeMap<i64, RunState>) -> Markup {
    let pairs: Vec<(usize, usize)> = edges.iter().map(|edge| (edge.0, edge.1)).collect();
    let wide = width_of(nodes.iter().map(|node| node.name.as_str()));
    let layout = layered(nodes.len(), &pairs, wide, HEIGHT);
    let (width, height) = (layout.width + 4.0, layout.height + 4.0);
    // Where each line leads to.
    let heads: String = edges
        .iter()
        .map(|(_, to, _)| layout.positions[*to])
        .map(|at| format!("M{:.0} {:.1}l6 3.5l-6 3.5", at.x - wide / 2.0 - 6.0, at.y - 3.5))
        .collect();
    html! {
        div.zoom tabindex="0" role="group" aria-label=(t!(ctx, "tab-graph")) {
            svg.picture width=(format!("{width:.0}")) height=(format!("{height:.0}")) viewBox=(format!("-2 -2 {width:.0} {height:.0}")) role="group" aria-label=(t!(ctx, "links-label", groups = nodes.len(), links = edges.len())) {
                @for (from, to, starts) in edges {
                    @let (a, b) = (layout.positions[*from], layout.positions[*to]);
                    @let (x1, x2) = (a.x + wide / 2.0, b.x - wide / 2.0);
                    @let bend = ((x2 - x1) / 2.0).min(60.0);
                    path class=(if *starts { "edge starts" } else { "edge" })
                        d=(format!("M{x1:.0} {:.0}C{:.0} {:.0} {:.0} {:.0} {x2:.0} {:.0}", a.y, x1 + bend, a.y, x2 - bend, b.y, b.y)) {}
                }
                path.edge d=(heads) {}
                @for (index, at) in layout.positions.iter().enumerate() {
                    @let one = &nodes[index];
                    @let end = ends.get(&one.id).copied();
                    @let word = if one.enabled { end.map(|end| state_word(ctx, end)) } else { Some(state_word(ctx, "disabled")) };
                    a class=(if one.enabled { "node" } else { "node off" }) href={ "/groups/" (segment(&one.name)) } {
                        (node(&one.name, word.as_deref(), end, (at.x - wide / 2.0, at.y - HEIGHT / 2.0), wide))
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(upstream: &str, group: &str, kind: &str) -> LinkLine {
        let id = |name: &str| name.bytes().next().map_or(0, i64::from);
        LinkLine {
            upstream: upstream.into(),
            upstream_enabled: true,
            upstream_id: id(upstream),
            group: group.into(),
            enabled: true,
            group_id: id(group),
            kind: kind.into(),
        }
    }

    #[test]
    fn what_hangs_together_with_what_is_sought() {
        let links = [
            link("a", "b", "depends_on"),
            link("b", "c", "depends_on"),
            link("x", "y", "depends_on"),
        ];
        let (nodes, edges) = chosen(&links, Some("C"));
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!((names, edges.len()), (vec!["a", "b", "c"], 2));
        assert_eq!(chosen(&links, None).0.len(), 5);
        assert!(chosen(&links, Some("none")).0.is_empty());
        // Names are kept composed, however one writes them.
        let links = [link("caf\u{e9}", "d", "depends_on")];
        assert_eq!(chosen(&links, Some("CAFE\u{301}")).0.len(), 2);
    }

    #[test]
    fn a_picture_has_no_way_back() {
        // b follows a, and starts runs of a, and of itself.
        let links = [
            link("a", "b", "depends_on"),
            link("a", "b", "sub_run"),
            link("b", "b", "sub_run"),
        ];
        assert_eq!(chosen(&links, None).1, [(0, 1, false)]);
        // c starts runs of a.
        let links = [link("a", "b", "depends_on"), link("a", "c", "sub_run")];
        assert_eq!(chosen(&links, None).1, [(0, 1, false), (2, 0, true)]);
    }
}
