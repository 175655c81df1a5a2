# Serves a classifier of `regraft fit`, without torch or anything else that only training needs.
#   docker build -t regraft .
#   docker run -p 8000:8000 -e REGRAFT_API_KEY=... -v "$PWD/runs/best:/run:ro" regraft
FROM python:3.12-slim
WORKDIR /regraft
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt '.[serve]' \
    && useradd --create-home regraft
USER regraft
EXPOSE 8000
# Beyond loopback, serve asks for REGRAFT_API_KEY.
ENTRYPOINT ["regraft", "serve"]
CMD ["/run", "--host", "0.0.0.0"]
