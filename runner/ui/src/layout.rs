//! The positions of the nodes of a graph: layers from left to right, by `rust-sugiyama`.

/// The position of a node: its centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Position {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A graph that has been laid out.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) positions: Vec<Position>,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// With more nodes or edges than this, the crossings of lines are not reduced: nobody follows so many lines, and the
/// library would take seconds.
const CAREFUL_NODES_MAX: usize = 600;
const CAREFUL_EDGES_MAX: usize = 1_500;

/// Between the borders of two nodes, across and along the layers.
const GAP_ACROSS: f64 = 16.0;
const GAP_ALONG: f64 = 48.0;
/// Beyond this many layers the picture is drawn small, and what is between them is better used for names.
const LAYERS_WIDE_MAX: usize = 8;
const GAP_ALONG_MANY: f64 = 24.0;

/// How often nodes are moved towards those with which they are linked, from each side in turn.
const SWEEPS: usize = 12;

/// Up to this many nodes without any edge are in a column; more form a block, about twice as wide as it is high.
const COLUMN_MAX: usize = 8;

/// Lays out a DAG of `count` nodes, each of one size.
pub(crate) fn layered(count: usize, edges: &[(usize, usize)], width: f64, height: f64) -> Layout {
    let across = height + GAP_ACROSS;
    let mut positions = vec![Position { x: 0.0, y: 0.0 }; count];
    if edges.is_empty() {
        let along = width + GAP_ALONG;
        let columns = match count {
            0..=COLUMN_MAX => 1,
            _ => (count as f64 * across / along * 2.0).sqrt().ceil().max(1.0) as usize,
        };
        for (node, position) in positions.iter_mut().enumerate() {
            position.x = (node % columns) as f64 * along;
            position.y = (node / columns) as f64 * across;
        }
    } else {
        let layers = layers(count, edges);
        let many = layers.iter().any(|layer| *layer >= LAYERS_WIDE_MAX);
        let along = width + if many { GAP_ALONG_MANY } else { GAP_ALONG };
        let mut linked = vec![(Vec::new(), Vec::new()); count];
        for (from, to) in edges {
            linked[*to].0.push(*from);
            linked[*from].1.push(*to);
        }
        let mut top = 0.0_f64;
        // Parts without a connection are below one another.
        for part in in_order(count, edges) {
            let mut rows: Vec<Vec<usize>> = Vec::new();
            for node in &part {
                let layer = layers[*node];
                if rows.len() <= layer {
                    rows.resize(layer + 1, Vec::new());
                }
                rows[layer].push(*node);
            }
            settle(&rows, &linked, across, &mut positions);
            let ys = part.iter().map(|node| positions[*node].y);
            let (least, most) = ys.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), y| {
                (least.min(y), most.max(y))
            });
            for node in part {
                positions[node].x = layers[node] as f64 * along;
                positions[node].y += top - least;
            }
            top += most - least + across;
        }
    }
    let most = |of: fn(&Position) -> f64| positions.iter().map(of).fold(0.0, f64::max);
    let (wide, high) = (
        most(|position| position.x) + width,
        most(|position| position.y) + height,
    );
    for position in &mut positions {
        position.x += width / 2.0;
        position.y += height / 2.0;
    }
    Layout {
        positions,
        width: wide,
        height: high,
    }
}

/// The connected parts of the graph. The nodes of each are in an order in which few lines cross, computed by
/// `rust-sugiyama` unless there are too many.
fn in_order(count: usize, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    if count > CAREFUL_NODES_MAX || edges.len() > CAREFUL_EDGES_MAX {
        return vec![(0..count).collect()];
    }
    let vertices: Vec<(u32, (f64, f64))> = (0..count).map(|node| (node as u32, (1.0, 1.0))).collect();
    let lines: Vec<(u32, u32)> = edges.iter().map(|(from, to)| (*from as u32, *to as u32)).collect();
    let config = rust_sugiyama::configure::Config {
        vertex_spacing: 0.0,
        ..Default::default()
    };
    // The library logs each of its steps at level info, under many names. The log of a node must not contain them.
    let parts = tracing::dispatcher::with_default(&tracing::Dispatch::none(), || {
        rust_sugiyama::from_vertices_and_edges(&vertices, &lines, &config)
    });
    let ordered = parts.into_iter().map(|(mut part, ..)| {
        // The library's layers are below one another; here they are side by side.
        part.sort_by(|(_, (one, _)), (_, (other, _))| one.total_cmp(other));
        part.into_iter().map(|(node, _)| node).collect()
    });
    ordered.collect()
}

/// Places the nodes of each layer, in their order, as near to those that they are linked with as there is room. (The
/// library's own positions are true to its lines: those of five hundred nodes are mostly white.)
fn settle(rows: &[Vec<usize>], linked: &[(Vec<usize>, Vec<usize>)], step: f64, positions: &mut [Position]) {
    for row in rows {
        let middle = (row.len() as f64 - 1.0) / 2.0;
        for (at, node) in row.iter().enumerate() {
            positions[*node].y = (at as f64 - middle) * step;
        }
    }
    for sweep in 0..=SWEEPS {
        let forward = sweep % 2 == 0;
        for at in 0..rows.len() {
            let row = &rows[if forward { at } else { rows.len() - 1 - at }];
            let wanted: Vec<f64> = row
                .iter()
                .map(|node| {
                    let (before, behind) = &linked[*node];
                    let (before, behind): (&[usize], &[usize]) = match (sweep, forward) {
                        (SWEEPS, _) => (before, behind),
                        (_, true) => (before, &[]),
                        (_, false) => (&[], behind),
                    };
                    let near = before.iter().chain(behind);
                    let (sum, n) = near.fold((0.0, 0.0), |(sum, n), other| (sum + positions[*other].y, n + 1.0));
                    if n > 0.0 { sum / n } else { positions[*node].y }
                })
                .collect();
            for (node, y) in row.iter().zip(spread(&wanted, step)) {
                positions[*node].y = y;
            }
        }
    }
}

/// The positions that are nearest to these (by the squares of the distances), in the same order and a step apart.
fn spread(wanted: &[f64], step: f64) -> Vec<f64> {
    // Without the steps, the positions only must not decrease. Neighbours that would decrease form one block at the
    // mean of their wanted positions.
    let mut blocks: Vec<(f64, f64)> = Vec::with_capacity(wanted.len());
    for (at, y) in wanted.iter().enumerate() {
        let mut block = (y - at as f64 * step, 1.0);
        while let Some(last) = blocks.pop_if(|last| last.0 / last.1 > block.0 / block.1) {
            block = (block.0 + last.0, block.1 + last.1);
        }
        blocks.push(block);
    }
    let even = blocks
        .into_iter()
        .flat_map(|(sum, n)| std::iter::repeat_n(sum / n, n as usize));
    even.enumerate().map(|(at, y)| y + at as f64 * step).collect()
}

/// The length of the longest path to each node.
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
        for (one, a) in layout.positions.iter().enumerate() {
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
            for b in layout.positions.iter().skip(one + 1) {
                assert!(
                    (a.x - b.x).abs() >= 149.0 || (a.y - b.y).abs() >= 31.0,
                    "{a:?} and {b:?} overlap"
                );
            }
        }
        for (from, to) in edges {
            assert!(
                layout.positions[*from].x < layout.positions[*to].x,
                "an edge leads back"
            );
        }
        layout
    }

    #[test]
    fn nothing_overlaps_and_edges_lead_on() {
        check(1, &[]);
        check(3, &[]);
        check(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        // Two parts without a connection.
        check(5, &[(0, 1), (2, 3), (2, 4)]);
        // A long path next to a short one.
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

    #[test]
    fn a_picture_is_no_higher_than_its_fullest_layer_needs() {
        // Twenty-five layers of twenty, each node after two of the layer before, far from each other.
        let edges: Vec<(usize, usize)> = (20..500)
            .flat_map(|node| {
                let before = (node / 20 - 1) * 20;
                [(before + node * 7 % 20, node), (before + node * 13 % 20, node)]
            })
            .collect();
        let layout = check(500, &edges);
        let fullest = 20.0 * (32.0 + GAP_ACROSS);
        assert!(layout.height <= fullest * 1.5, "{} of {fullest}", layout.height);
    }

    #[test]
    fn many_layers_stand_closer() {
        let chain = |count: usize| -> Vec<(usize, usize)> { (1..count).map(|node| (node - 1, node)).collect() };
        assert_eq!(check(8, &chain(8)).width, 8.0 * 150.0 + 7.0 * GAP_ALONG);
        assert_eq!(check(9, &chain(9)).width, 9.0 * 150.0 + 8.0 * GAP_ALONG_MANY);
    }

    #[test]
    fn what_has_no_edge_is_a_block() {
        let layout = check(100, &[]);
        assert!(
            layout.width > layout.height && layout.width < layout.height * 4.0,
            "{layout:?}"
        );
        assert_eq!(check(5, &[]).width, 150.0);
    }

    #[test]
    fn nodes_keep_their_distance_and_stay_where_they_can() {
        assert_eq!(spread(&[0.0, 10.0, 40.0], 10.0), [0.0, 10.0, 40.0]);
        assert_eq!(spread(&[5.0, 5.0], 10.0), [0.0, 10.0]);
        assert_eq!(spread(&[30.0, 0.0, 100.0], 10.0), [10.0, 20.0, 100.0]);
        assert!(spread(&[], 10.0).is_empty());
    }
}
