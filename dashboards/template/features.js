// Mean feature maps of the dense and the ternary network, and the similarity per layer.
function showFeatures() {
  const card = byId("features-card");
  const mine = detailOf(state.trial)?.features;
  const other = Object.entries(study().details).find(([, detail]) => detail.features);
  const found = mine ?? other?.[1].features;
  const trial = mine ? state.trial : other && Number(other[0]);
  if (!found) {
    fill(
      card,
      element(
        "p",
        { class: "empty" },
        "Maps are made of the chosen trial when the study ends, and of any trial by sca-search features RUN --trial N.",
      ),
    );
    return;
  }
  const rounded = found.layers.filter((layer) => layer.ternary);
  const least = rounded.reduce((worst, layer) => (worst && worst.cka <= layer.cka ? worst : layer), null);
  const title = least
    ? `Ternary layers see much the same: similarity ${least.cka.toFixed(2)} or more`
    : "Feature maps of both networks";
  const note = `Trial ${trial}${
    mine ? "" : " (the selected one has no maps)"
  }. For each image the mean map of a layer, left of the dense network, right of the ternary one, each from its lowest to its highest value. Linear CKA over ${found.compared} validation images: 1 is alike up to rotation and scale.`;
  const head = element(
    "tr",
    {},
    element("th", { scope: "col" }, "layer, similarity"),
    ...found.images.map((source, index) =>
      element(
        "th",
        { scope: "col" },
        picture(source, `validation image ${index + 1}, ${found.labels[index]}`),
        element("br"),
        found.labels[index],
      )
    ),
  );
  const rows = found.layers.map((layer) =>
    element(
      "tr",
      {},
      element(
        "th",
        { scope: "row", class: "name" },
        layer.layer,
        element("small", {}, `weight layer ${layer.number}, ${layer.ternary ? "ternary" : "dense"}`),
        element("small", {}, meter(layer.cka), layer.cka.toFixed(3)),
      ),
      ...(layer.dense.length
        ? found.images.map((_, index) =>
          element(
            "td",
            {},
            picture(layer.dense[index], `${layer.layer}, dense, image ${index + 1}`),
            picture(layer.rounded[index], `${layer.layer}, ternary, image ${index + 1}`),
          )
        )
        : [element("td", { colspan: found.images.length, class: "note" }, "fully connected: no map")]),
    )
  );
  fill(
    card,
    element(
      "h3",
      {},
      least && least.cka < 0.8 ? `${least.layer} sees differently: similarity ${least.cka.toFixed(2)}` : title,
    ),
    element("p", { class: "note" }, note),
    element(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Feature maps" },
      element("table", { class: "maps" }, element("thead", {}, head), element("tbody", {}, ...rows)),
    ),
  );
}

const picture = (source, alt) => element("img", { src: source, alt, width: 64, height: 64, loading: "lazy" });

function meter(fraction) {
  const fillBar = element("i");
  fillBar.style.width = `${Math.round(100 * fraction)}%`;
  return element("span", { class: "meter", "aria-hidden": "true" }, fillBar);
}
