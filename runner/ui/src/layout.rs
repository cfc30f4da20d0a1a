//! Where the nodes of a graph stand: layers from left to right, by `rust-sugiyama`.

/// A node's place: its centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A graph that has been laid out.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// By node.
    pub(crate) places: Vec<Place>,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// Beyond this many nodes or edges layers are stacked without minding crossings: nobody follows so many lines, and the
/// library would take seconds.
const CAREFUL_NODES_MAX: usize = 600;
const CAREFUL_EDGES_MAX: usize = 1_500;

/// Between the borders of two nodes, across and along the layers.
const GAP_ACROSS: f64 = 18.0;
const GAP_ALONG: f64 = 56.0;

/// Lays out a DAG of `count` nodes, each of one size.
pub(crate) fn layered(count: usize, edges: &[(usize, usize)], width: f64, height: f64) -> Layout {
    let layers = layers(count, edges);
    let mut places = vec![Place { x: 0.0, y: 0.0 }; count];
    let careful = count <= CAREFUL_NODES_MAX && edges.len() <= CAREFUL_EDGES_MAX;
    let mut across = 0.0_f64;
    if careful && !edges.is_empty() {
        let vertices: Vec<(u32, (f64, f64))> = (0..count)
            .map(|node| (node as u32, (height + GAP_ACROSS, 1.0)))
            .collect();
        let lines: Vec<(u32, u32)> = edges.iter().map(|(from, to)| (*from as u32, *to as u32)).collect();
        let config = rust_sugiyama::configure::Config {
            vertex_spacing: 0.0,
            ..Default::default()
        };
        // The library tells each of its steps as information, under names of all kinds: nothing for the log of a node.
        let parts = tracing::dispatcher::with_default(&tracing::Dispatch::none(), || {
            rust_sugiyama::from_vertices_and_edges(&vertices, &lines, &config)
        });
        // One layout for each part that hangs together: below one another.
        for (part, ..) in parts {
            let least = part.iter().map(|(_, (x, _))| *x).fold(f64::INFINITY, f64::min);
            let most = part.iter().map(|(_, (x, _))| *x).fold(f64::NEG_INFINITY, f64::max);
            for (node, (x, _)) in &part {
                // The library's layers lie below one another; here they stand side by side.
                places[*node].y = across + x - least;
            }
            across += most - least + height + GAP_ACROSS;
        }
    } else {
        let mut filled = vec![0_usize; layers.iter().max().map_or(0, |most| most + 1)];
        for (node, layer) in layers.iter().enumerate() {
            places[node].y = filled[*layer] as f64 * (height + GAP_ACROSS);
            filled[*layer] += 1;
        }
        across = filled.iter().max().copied().unwrap_or(0) as f64 * (height + GAP_ACROSS);
    }
    for (place, layer) in places.iter_mut().zip(&layers) {
        place.x = *layer as f64 * (width + GAP_ALONG) + width / 2.0;
        place.y += height / 2.0;
    }
    let deepest = layers.iter().max().map_or(0, |most| most + 1) as f64;
    Layout {
        places,
        width: (deepest * (width + GAP_ALONG) - GAP_ALONG).max(width),
        height: (across - GAP_ACROSS).max(height),
    }
}

/// How many steps each node is behind the first, at most.
fn layers(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut incoming = vec![0_usize; count];
    let mut outgoing = vec![Vec::new(); count];
    for (from, to) in edges {
        incoming[*to] += 1;
        outgoing[*from].push(*to);
    }
    let mut layers = vec![0; count];
    let mut open: Vec<usize> = (0..count).filter(|node| incoming[*node] == 0).collect();
    while let Some(node) = open.pop() {
        for next in &outgoing[node] {
            layers[*next] = layers[*next].max(layers[node] + 1);
            incoming[*next] -= 1;
            if incoming[*next] == 0 {
                open.push(*next);
            }
        }
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(count: usize, edges: &[(usize, usize)]) -> Layout {
        let layout = layered(count, edges, 150.0, 32.0);
        for (one, a) in layout.places.iter().enumerate() {
            assert!(
                a.x >= 75.0 && a.x <= layout.width - 74.9,
                "{one} stands outside: {a:?} of {}",
                layout.width
            );
            assert!(
                a.y >= 15.9 && a.y <= layout.height - 15.9,
                "{one} stands outside: {a:?} of {}",
                layout.height
            );
            for b in layout.places.iter().skip(one + 1) {
                assert!(
                    (a.x - b.x).abs() >= 149.0 || (a.y - b.y).abs() >= 31.0,
                    "{a:?} and {b:?} overlap"
                );
            }
        }
        for (from, to) in edges {
            assert!(layout.places[*from].x < layout.places[*to].x, "an edge leads back");
        }
        layout
    }

    #[test]
    fn nothing_overlaps_and_edges_lead_on() {
        check(1, &[]);
        check(3, &[]);
        check(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        // Two parts that do not hang together.
        check(5, &[(0, 1), (2, 3), (2, 4)]);
        // A long way beside a short one.
        check(5, &[(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (0, 4)]);
    }

    #[test]
    fn a_fan_and_a_ladder_of_many() {
        let fan: Vec<(usize, usize)> = (1..99).flat_map(|node| [(0, node), (node, 99)]).collect();
        check(100, &fan);
        let ladder: Vec<(usize, usize)> = (0..490)
            .flat_map(|node| [(node, node + 7), (node, (node / 7 + 1) * 7 + (node + 1) % 7)])
            .collect();
        check(500, &ladder);
    }
}
